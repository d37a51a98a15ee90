"""Points, sizes and curves, in pixels, y downwards."""

from __future__ import annotations

import dataclasses

Point = tuple[float, float]
Size = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where boxes and wires go.

    Attributes:
      engine: what made it: "dot", "graphviz-pure" or "layered"; "" where there was nothing to place.
      centres: of the boxes.
      curves: of the wires: a start, then two control points and an end for each piece of a cubic spline.
    """

    engine: str
    width: float
    height: float
    centres: tuple[Point, ...]
    curves: tuple[tuple[Point, ...], ...]
