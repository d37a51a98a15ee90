"""Intermediates dropped after their early readers and made again just before their late ones.

A gradient keeps what its forward part made until its backward part reads it. What of that is cheap to make is made
again instead, from as few bytes as a minimum cut finds.
"""

from .choose import Recomputation, Recomputed, recomputations
from .kept import most_held

__all__ = ["Recomputation", "Recomputed", "most_held", "recomputations"]
