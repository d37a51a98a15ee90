"""What can go wrong, each with what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profile import Buffer

class LimitError(ValueError):
    """The limit can't be met.

    Attributes:
      floor_bytes: the lowest peak (arguments + outputs + temporaries) that memscope can reach.
      blockers: the buffers alive at that peak, largest first, each with the reason it can't shrink.
    """

    def __init__(self, message: str, floor_bytes: int, blockers: tuple[tuple[Buffer, str], ...]) -> None:
        super().__init__(message)
        self.floor_bytes = floor_bytes
        self.blockers = blockers


class TargetError(RuntimeError):
    """The target is unknown, or can't do what was asked of it on this machine."""
