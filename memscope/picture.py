"""An HLO graph, ready to be drawn: what is shown, how large each box is, and where it goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .graph import HloGraph
from .layout.place import lay_out
from .layout.plane import Layout, Size
from .layout.shown import Shown
from .layout.skeleton import Skeleton, skeleton
from .report.boxes import Scale, box_size, scale_of


@dataclasses.dataclass(frozen=True)
class Picture:
    """Boxes and edges with their places, in pixels.

    Attributes:
      sizes: of the boxes of `skeleton`.
      scale: from bytes to shades and sizes; the same for every picture of a graph.
      peak: the instruction that makes the largest buffer at the peak, or None.
    """

    shown: Shown
    skeleton: Skeleton
    sizes: tuple[Size, ...]
    layout: Layout
    scale: Scale
    peak: str | None


def picture(graph: HloGraph, shown: Shown, engines: Sequence[str] | None = None) -> Picture:
    """Lays out what is shown of a graph; `engines` as in `lay_out`."""
    bones, scale = skeleton(shown), scale_of(graph.largest)
    sizes = tuple(box_size(box, scale) for box in bones.boxes)
    return Picture(shown, bones, sizes, lay_out(bones, sizes, engines), scale, graph.peak)
