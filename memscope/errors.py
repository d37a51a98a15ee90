"""What can go wrong, each with what to do next."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profile import Buffer

_PACKAGE = os.path.dirname(__file__)


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


@contextlib.contextmanager
def hide_frames() -> Iterator[None]:
    """Lets an exception of the user's function through with memscope's own frames taken out."""
    try:
        yield
    except Exception as error:
        raise error.with_traceback(_without_own(error.__traceback__)) from error.__cause__


def _without_own(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest = _without_own(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE + os.sep):
        return rest
    traceback.tb_next = rest
    return traceback
