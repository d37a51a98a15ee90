"""A picture of the HLO graph as SVG: the same for a static page and for the widget."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ..layout.plane import Point, Size
from ..layout.shown import LONGEST
from ..sizes import format_bytes
from . import boxes
from .image import as_image

if TYPE_CHECKING:
    from ..graph import Node
    from ..layout.skeleton import Box, Wire
    from ..picture import Picture

_MARGIN = 14.0
_ARROW = 7.0

# One hue from light to dark, or from dark to light on a dark ground, so that more bytes always stand out more; the
# peak in Okabe and Ito's vermilion and orange, as everywhere in memscope.
_LIGHT = """--mg-mark: #d55e00; --mg-1: #eef5fb; --mg-2: #d6e6f4; --mg-3: #abd0e6; --mg-4: #6aaed6; --mg-5: #2a75b3;
  --mg-6: #084488; --mg-t1: #111; --mg-t2: #111; --mg-t3: #111; --mg-t4: #111; --mg-t5: #fff; --mg-t6: #fff;"""
_DARK = """--mg-mark: #e69f00; --mg-1: #12283c; --mg-2: #153c5e; --mg-3: #1a5584; --mg-4: #4a9bd4; --mg-5: #8fc6ea;
  --mg-6: #d9eefc; --mg-t1: #fff; --mg-t2: #fff; --mg-t3: #fff; --mg-t4: #111; --mg-t5: #111; --mg-t6: #111;"""
_RULES = """
.mg-graph { --mg-wire: color-mix(in srgb, var(--mg-ink) 38%, transparent); --mg-0: transparent; }
.mg-graph .mg-box text, .mg-graph .mg-chip text { fill: var(--mg-ink);
  font: 11px ui-monospace, "DejaVu Sans Mono", monospace; }
.mg-graph .mg-box rect, .mg-graph .mg-chip rect { stroke: var(--mg-wire); stroke-width: 1; fill: var(--mg-paper); }
.mg-graph .mg-box .mg-op { font-weight: 600; }
.mg-graph .mg-box.mg-on-path > rect, .mg-graph .mg-chip.mg-on-path rect { stroke: var(--mg-mark); stroke-width: 3; }
.mg-graph .mg-box.mg-summit > rect { stroke-width: 6; }
.mg-graph .mg-free > rect { stroke-dasharray: 3 3; }
.mg-graph .mg-wire path { fill: none; stroke: var(--mg-wire); stroke-width: 1.2; }
.mg-graph .mg-wire polygon { fill: var(--mg-wire); }
.mg-graph .mg-wire.mg-on-path path { stroke: var(--mg-mark); stroke-width: 3; }
.mg-graph .mg-wire.mg-on-path polygon { fill: var(--mg-mark); }
.mg-graph .mg-wire.mg-control path { stroke-dasharray: 5 4; }
.mg-graph .mg-live { fill: var(--mg-mark); stroke: var(--mg-paper); stroke-width: 1.5; }
.mg-graph .mg-more rect { fill: var(--mg-paper); stroke: var(--mg-wire); }
.mg-graph .mg-more text { font-size: 10px; }
.mg-graph .mg-legend { display: flex; flex-wrap: wrap; gap: .25em 1.1em; font: 12px/1.5 system-ui, sans-serif;
  color: var(--mg-ink); margin: .4em 0; }
.mg-graph .mg-legend i { display: inline-block; width: 1.1em; height: .85em; margin-right: .4em; border-radius: 2px;
  border: 1px solid var(--mg-wire); vertical-align: -.08em; box-sizing: border-box; }
.mg-graph .mg-legend i.mg-dot { border: 0; background: var(--mg-mark); width: .7em; height: .7em; border-radius: 50%; }
.mg-graph .mg-legend i.mg-path { border: 2px solid var(--mg-mark); }
.mg-graph .mg-legend i.mg-none { border-style: dashed; }
""" + "".join(
    f".mg-graph .mg-box.mg-b{k} > rect, .mg-graph .mg-chip.mg-b{k} rect, .mg-graph i.mg-b{k} "
    f"{{ fill: var(--mg-{k}); background: var(--mg-{k}); }}\n"
    f".mg-graph .mg-box.mg-b{k} > text, .mg-graph .mg-chip.mg-b{k} text {{ fill: var(--mg-t{k}, var(--mg-ink)); }}\n"
    for k in range(boxes.LEVELS + 1)
)
GRAPH_STYLE = f"""
.mg-graph {{ --mg-ink: var(--jp-ui-font-color1, currentColor); --mg-paper: var(--jp-layout-color0, Canvas); {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ .mg-graph {{ {_DARK} }} }}
[data-jp-theme-light="true"] .mg-graph {{ {_LIGHT} }}
[data-jp-theme-light="false"] .mg-graph {{ {_DARK} }}
{_RULES}"""
# A picture on its own knows nothing of the page it stands in: it brings its ground along.
_IMAGE_STYLE = f".mg-graph {{ --mg-ink: #222; --mg-paper: #fff; background: #fff; {_LIGHT} }}{_RULES}"


def graph_image(picture: Picture, label: str) -> str:
    """The picture as an image."""
    drawing = graph_svg(picture, label).replace("<svg ", '<svg class="mg-graph" ', 1)
    return as_image(drawing, _IMAGE_STYLE, label, "max-width:100%")


def graph_svg(picture: Picture, label: str) -> str:
    """The picture as an SVG element.

    Boxes carry `data-node` (the HLO instruction), `data-buffer` and their place as `data-box`; edges the places of
    their ends as `data-tail` and `data-head`.
    """
    layout = picture.layout
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    wires = "".join(map(_wire, picture.skeleton.wires, layout.curves))
    drawn = "".join(
        _box(picture, k, box, size, centre)
        for k, (box, size, centre) in enumerate(zip(picture.skeleton.boxes, picture.sizes, layout.centres, strict=True))
    )
    return (
        f'<svg viewBox="{-_MARGIN:.0f} {-_MARGIN:.0f} {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="{escape(label)}">'
        f'<g class="mg-wires">{wires}</g><g class="mg-boxes">{drawn}</g></svg>'
    )


def legend(picture: Picture) -> str:
    """What shades and marks mean, as HTML; "" where nothing is drawn."""
    if not picture.skeleton.boxes:
        return ""
    thresholds = picture.scale.thresholds
    shades = [f"{format_bytes(t)} or more" for t in thresholds]
    shades[-1] = f"less than {format_bytes(thresholds[-2])}" if len(thresholds) > 1 else shades[-1]
    marks = [(f"mg-b{boxes.LEVELS - k}", text) for k, text in enumerate(shades)]
    marks += [("mg-none", "no buffer"), ("mg-path", "peak path"), ("mg-dot", "in use at the peak")]
    items = "".join(f'<span><i class="{mark}"></i>{escape(text)}</span>' for mark, text in marks)
    return f'<div class="mg-legend">{items}</div>'


def caption(picture: Picture, long_edges: str) -> str:
    """What is shown and what is left out; `long_edges` says what becomes of those."""
    place = picture.shown.computation
    total = sum(not n.is_input for n in place.nodes)
    if not picture.skeleton.boxes:
        return "XLA runs no instruction here."
    shown = total - picture.shown.hidden
    count = f"{shown:,} of {total:,} instructions" if shown < total else f"all {total:,} instructions"
    if shown == total == 1:
        count = "its one instruction"
    where = {"entry": "", "fusion": "Inside the fusion {0}. "}.get(place.role, "The {1} of {0}. ")
    said = (
        where.format(place.caller, place.role) + f"Shown: {count}; parameters and constants stand on what reads them."
    )
    if picture.skeleton.long:
        said += f" {len(picture.skeleton.long):,} edges span more than {LONGEST} layers: {long_edges}."
    return said


def node_title(node: Node) -> str:
    """All there is to say of a node, line by line."""
    held = f"{format_bytes(node.bytes)} in {', '.join(node.buffers)}" if node.bytes else "no buffer of its own"
    where = [f"{node.opcode} {node.name}", f"{node.op}, {boxes.array(node)}", held]
    if node.source:
        where.append(node.source)
    notes = [text for holds, text in _NOTES if holds(node)]
    return "\n".join([*where, *notes])


_NOTES = (
    (lambda n: n.on_peak_path, "on the peak path"),
    (lambda n: n.live_at_peak, "in use at the peak"),
    (lambda n: n.is_result, "a result"),
)


def _box(picture: Picture, k: int, box: Box, size: Size, centre: Point) -> str:
    width, height = size
    x, y = centre[0] - width / 2, centre[1] - height / 2
    body = boxes.body_size(box.node, picture.scale)[1]
    return (
        f'<g transform="translate({x:.1f} {y:.1f})">{"".join(_chips(picture, k, box, width))}'
        f'<g {_attributes(picture, box.node, k, "mg-box")} transform="translate(0 {height - body:.1f})">'
        f"<title>{escape(node_title(box.node))}</title>"
        f'<rect width="{width:.1f}" height="{body:.1f}" rx="3"/>{"".join(_lines(picture, box.node, width))}'
        f"{_live_mark(box.node, width)}{_more(box, width, body)}</g></g>"
    )


def _attributes(picture: Picture, node: Node, k: int, kind: str) -> str:
    on_path = node.on_peak_path and picture.skeleton.boxes[k].node.on_peak_path
    marks = [kind, f"mg-b{picture.scale.level(node.bytes)}"]
    marks += ["mg-on-path"] * on_path + ["mg-free"] * (not node.bytes) + ["mg-summit"] * (node.name == picture.peak)
    return f'class="{" ".join(marks)}" data-box="{k}" data-node="{escape(node.name)}" data-buffer="{_buffer(node)}"'


def _buffer(node: Node) -> str:
    return escape(node.buffer or "")


def _lines(picture: Picture, node: Node, width: float) -> Iterator[str]:
    size = boxes.font(picture.scale.level(node.bytes))
    for row, line in enumerate(boxes.lines(node)):
        kind = ' class="mg-op"' if row == 0 else ""
        y = 3 + boxes.line_height(size) * (row + 0.78)
        yield (
            f'<text{kind} x="{width / 2:.1f}" y="{y:.1f}" text-anchor="middle" style="font-size:{size:.0f}px">'
            f"{escape(line)}</text>"
        )


def _chips(picture: Picture, k: int, box: Box, width: float) -> Iterator[str]:
    columns, rows = boxes.chip_grid(box)
    for number, node in enumerate(box.inputs):
        column, row = divmod(number, rows)
        wide = width / columns
        yield (
            f'<g {_attributes(picture, node, k, "mg-chip")} transform="translate({column * wide:.1f} '
            f'{row * boxes.CHIP:.1f})"><title>{escape(node_title(node))}</title>'
            f'<rect width="{wide:.1f}" height="{boxes.CHIP:.0f}" rx="2"/>'
            f'<text x="{wide / 2:.1f}" y="12" text-anchor="middle">{escape(boxes.input_line(node))}</text></g>'
        )


def _live_mark(node: Node, width: float) -> str:
    return f'<circle class="mg-live" cx="{width:.1f}" cy="0" r="5"/>' if node.live_at_peak else ""


def _more(box: Box, width: float, body: float) -> str:
    if not box.hidden:
        return ""
    text = f"+{box.hidden}"
    wide = 8 + 6.2 * len(text)
    return (
        f'<g class="mg-more" transform="translate({width - wide / 2:.1f} {body - 7:.1f})">'
        f"<title>{box.hidden} neighbours are not shown</title>"
        f'<rect width="{wide:.1f}" height="14" rx="7"/>'
        f'<text x="{wide / 2:.1f}" y="10.5" text-anchor="middle">{text}</text></g>'
    )


def _wire(wire: Wire, curve: tuple[Point, ...]) -> str:
    (x0, y0), *rest = curve
    path = f"M{x0:.1f} {y0:.1f}C" + " ".join(f"{x:.1f} {y:.1f}" for x, y in rest)
    marks = "mg-wire" + " mg-on-path" * wire.edge.on_peak_path + " mg-control" * (wire.edge.kind == "control")
    return (
        f'<g class="{marks}" data-tail="{wire.tail}" data-head="{wire.head}"><path d="{path}"/>'
        f'<polygon points="{_arrow(curve)}"/></g>'
    )


def _arrow(curve: tuple[Point, ...]) -> str:
    """A triangle whose tip is the curve's end."""
    tip = curve[-1]
    before = next((p for p in reversed(curve) if p != tip), (tip[0], tip[1] - 1))
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = (dx * dx + dy * dy) ** 0.5
    ux, uy = dx / length * _ARROW, dy / length * _ARROW
    corners = (tip, (tip[0] - ux - uy / 2, tip[1] - uy + ux / 2), (tip[0] - ux + uy / 2, tip[1] - uy - ux / 2))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
