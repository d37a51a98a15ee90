"""Streaming: intermediates that exist one chunk at a time, inside loops.

`closure` decides statically what can be streamed and in which loops; `emit` writes those loops.
The paths that eXLA cuts (section 4 of "Memory Safe Computations with XLA Compiler") are the case of one
streamed path from one large tensor to one reducer.
"""

from .closure import Closure as Closure
from .emit import rewrite as rewrite
from .resident import Resident as Resident
from .structure import Carried as Carried
from .structure import Fold as Fold
from .structure import LoopPlan as LoopPlan
from .structure import Obstacle as Obstacle
from .structure import Sink as Sink
from .structure import Stack as Stack
from .structure import Streaming as Streaming
from .structure import sink_vars as sink_vars
