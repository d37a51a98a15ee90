"""Where each box goes: by Graphviz where it is there and does not fail, else by a simple layout of our own."""

from __future__ import annotations

from collections.abc import Sequence

from . import dot, layered
from .plane import Layout, Size
from .skeleton import Skeleton


def lay_out(skeleton: Skeleton, sizes: Sequence[Size], engines: Sequence[str] | None = None) -> Layout:
    """Places of the boxes, whose sizes are given in pixels.

    Args:
      engines: Graphviz executables to try in turn; None finds what is installed.
    """
    if not skeleton.boxes:
        return Layout("", 0, 0, (), ())
    for engine in dot.engines() if engines is None else engines:
        try:
            return dot.lay_out(skeleton, sizes, engine)
        except dot.DotError:
            continue
    return layered.lay_out(skeleton, sizes)
