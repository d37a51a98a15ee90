"""What stands in a box of the graph, and how much room that takes."""

from __future__ import annotations

import dataclasses
import math

from ..graph import Node
from ..layout.plane import Size
from ..layout.skeleton import Box
from ..sizes import format_bytes

LEVELS = 6  # shades by bytes; level 0 is for what holds nothing
CHIP = 16.0  # height of an input's line
_FONT = 11.0  # pixels, of level 0 and of inputs
_ASPECT = 0.605  # width of a character of a monospaced font, for each pixel of its height
_PADDING = 8.0
_CHIPS = 12  # inputs in one column
_WIDEST = 34  # characters


@dataclasses.dataclass(frozen=True)
class Scale:
    """From bytes to levels: a step for each factor of four, down from the largest."""

    top: int

    @property
    def thresholds(self) -> tuple[int, ...]:
        """The least bytes of each level, of the highest first; the lowest takes what is smaller."""
        return tuple(max(1, self.top >> 2 * k) for k in range(LEVELS) if self.top >> 2 * k or k == 0)

    def level(self, count: int) -> int:
        """0 for nothing, LEVELS for the largest."""
        if not count:
            return 0
        return max(1, LEVELS - sum(count < t for t in self.thresholds))


def scale_of(largest: int) -> Scale:
    """The scale whose highest level starts at the power of two at or below the largest node's bytes."""
    return Scale(1 << max(0, largest.bit_length() - 1))


def font(level: int) -> float:
    """Pixels: what holds more is written larger."""
    return _FONT + level


def lines(node: Node) -> tuple[str, ...]:
    """Op, array, and bytes with the user's line."""
    op = f"{node.op} ({node.opcode})" if node.opens and node.op != node.opcode else node.op
    last = " · ".join(filter(None, (format_bytes(node.bytes) if node.bytes else "", node.source or "")))
    return tuple(_clipped(line) for line in (op, array(node), last) if line)


def array(node: Node) -> str:
    """As in "float32[256,1000] and 2 more"."""
    more = f" and {node.arrays - 1} more" if node.arrays > 1 else ""
    return f"{node.dtype}[{','.join(map(str, node.shape))}]{more}"


def input_line(node: Node) -> str:
    """Name and bytes of a parameter or constant; the end of a long name tells more than its start."""
    name = "constant" if node.opcode == "constant" else node.buffer or node.name
    if len(name) > 24:
        name = "…" + name[-23:]
    return f"{name} {format_bytes(node.bytes)}" if node.bytes else name


def box_size(box: Box, scale: Scale) -> Size:
    """Width and height in pixels, inputs included."""
    width, height = body_size(box.node, scale)
    columns, rows = chip_grid(box)
    chips = columns * max((_width(input_line(n), _FONT) for n in box.inputs), default=0)
    return max(width, chips), height + rows * CHIP


def body_size(node: Node, scale: Scale) -> Size:
    """The same without inputs."""
    size = font(scale.level(node.bytes))
    text = lines(node)
    return math.ceil(max(_width(line, size) for line in text)), math.ceil(len(text) * line_height(size) + _PADDING)


def chip_grid(box: Box) -> tuple[int, int]:
    """Columns and rows of a box's inputs."""
    columns = math.ceil(len(box.inputs) / _CHIPS)
    return columns, math.ceil(len(box.inputs) / columns) if columns else 0


def line_height(size: float) -> float:
    return size * 1.3


def _width(line: str, size: float) -> float:
    return math.ceil(len(line) * size * _ASPECT + 2 * _PADDING)


def _clipped(line: str) -> str:
    return line if len(line) <= _WIDEST else line[: _WIDEST - 1] + "…"
