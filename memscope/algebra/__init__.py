"""Large intermediates that need not be computed at all: the same values by a cheaper primitive.

What a person would write by hand, once they know where the memory goes: an index in place of a product with a one-hot
matrix, `top_k` in place of a whole sort. Such a rewrite comes before any streaming, and only where the limit asks.

`late` gains nothing by itself: it is for loops that would have to run twice.
"""

from .late import scale_late
from .rules import Simplification, simplify

__all__ = ["Simplification", "scale_late", "simplify"]
