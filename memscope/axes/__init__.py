"""The axis rules, one short file per family of primitives. Read `factor.py` first."""

from . import (
    contraction,
    convolution,
    elementwise,
    fourier,
    indexing,
    linalg,
    opaque,
    ordering,
    random,
    reduction,
    shape,
    windows,
)
from .factor import At as At
from .factor import Blocked as Blocked
from .factor import Extent as Extent
from .factor import Factor as Factor
from .factor import Misaligned as Misaligned
from .factor import Share as Share
from .factor import Window as Window
from .table import factors as factors
from .table import reason as reason

FAMILIES = (
    elementwise,
    shape,
    reduction,
    contraction,
    convolution,
    ordering,
    indexing,
    linalg,
    fourier,
    random,
    windows,
    opaque,
)
