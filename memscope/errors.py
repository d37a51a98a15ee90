"""What can go wrong, each with what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .profile import Buffer


class _Explained(Exception):
    """An error whose message says all: JAX's note on hidden frames has nothing to add to it."""

    def add_note(self, note: str, /) -> None:
        if "JAX_TRACEBACK_FILTERING" not in note:
            super().add_note(note)


class ArgumentError(_Explained, TypeError):
    """A function, an argument or an option is not what memscope, or `jax.jit`, takes."""


class SizeError(_Explained, ValueError):
    """A limit that is no size, or not above zero."""


class LimitError(_Explained, ValueError):
    """The limit can't be met.

    Attributes:
      floor_bytes: the lowest peak (arguments + outputs + temporaries) that memscope can reach.
      blockers: the buffers alive at that peak, largest first, each with the reason it can't shrink.
    """

    def __init__(self, message: str, floor_bytes: int, blockers: tuple[tuple[Buffer, str], ...]) -> None:
        super().__init__(message)
        self.floor_bytes = floor_bytes
        self.blockers = blockers


class ExportError(_Explained, ValueError):
    """A function can't be written in the format that was asked for."""


class TargetError(_Explained, RuntimeError):
    """The target is unknown, or can't do what was asked of it on this machine."""


class RefusedError(TargetError):
    """XLA does not compile a program for a target, as where its arrays are larger than a kernel can index."""
