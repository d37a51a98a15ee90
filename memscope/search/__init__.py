"""What to stream, in what chunks and in which order, so that a program fits: tried by estimates, confirmed by XLA."""

from .candidate import Candidate, Found, Rearranged
from .search import Search

__all__ = ["Candidate", "Found", "Rearranged", "Search"]
