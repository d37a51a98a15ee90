"""Fourier transforms: the transformed axes are coupled, batches are free."""

from __future__ import annotations

from collections.abc import Sequence

from .factor import Factor, shape_of
from .table import Eqn, mapped, rule


@rule("fft", why="each row of a Fourier transform needs all rows of the axis")
def fft(eqn: Eqn) -> Sequence[Factor]:
    """Every axis before the transformed ones, which are the last."""
    shape = shape_of(eqn.invars[0])
    batch = shape[: len(shape) - len(eqn.params["fft_lengths"])]
    return [mapped(size, [axis], [axis]) for axis, size in enumerate(batch)]
