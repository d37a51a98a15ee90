"""How each primitive is written: one table, from the families in this package."""

from __future__ import annotations

from ..site import Template
from .arrays import ARRAYS
from .collectives import COLLECTIVES
from .effects import EFFECTS
from .elementwise import ELEMENTWISE
from .indexing import INDEXING
from .linear import LINEAR
from .randoms import RANDOMS
from .reductions import REDUCTIONS

TEMPLATES: dict[str, Template] = {
    **ELEMENTWISE,
    **ARRAYS,
    **REDUCTIONS,
    **LINEAR,
    **INDEXING,
    **RANDOMS,
    **COLLECTIVES,
    **EFFECTS,
}
