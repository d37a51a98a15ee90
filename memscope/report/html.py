"""A profile as HTML: one piece, no scripts, nothing to load."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from ..layout.shown import peak_view
from ..picture import picture
from ..sizes import format_bytes
from . import image, text
from .graph import GRAPH_STYLE, caption, graph_image, graph_svg, legend

if TYPE_CHECKING:
    from ..profile import Buffer, Profile

ROWS = 40
_CHART = (720, 200)  # width and height of the plot, in the SVG's own units
_LEFT, _TOP, _BOTTOM = 78, 16, 34
_BUCKETS = 240
_NODES = 24  # of the graph: a page that can't be zoomed shows the nearest of the peak only

# Hues from Okabe and Ito's colour-blind-safe palette; text and ground are the page's own, so that the
# fragment sits well in a light and in a dark notebook. The class twice outdoes JupyterLab's rules for any table.
_STYLE = """
.memscope { --ms-text: var(--jp-ui-font-color1, currentColor); --ms-temporary: #0072b2; --ms-output: #009e73;
  --ms-argument: #8a8a8a; --ms-constant: #cc79a7; --ms-peak: #d55e00;
  --ms-line: color-mix(in srgb, currentColor 22%, transparent);
  --ms-soft: color-mix(in srgb, currentColor 7%, transparent);
  color: var(--ms-text); font: 14px/1.45 system-ui, sans-serif; max-width: 62rem; }
@media (prefers-color-scheme: dark) { .memscope { --ms-temporary: #56b4e9; --ms-peak: #e69f00; } }
[data-jp-theme-light="true"] .memscope { --ms-temporary: #0072b2; --ms-peak: #d55e00; }
[data-jp-theme-light="false"] .memscope { --ms-temporary: #56b4e9; --ms-peak: #e69f00; }
.memscope h2 { font-size: 1.25em; margin: 0 0 .2em; font-weight: 600; }
.memscope h3 { font-size: 1em; margin: 1.4em 0 .4em; font-weight: 600; }
.memscope p { margin: .15em 0; }
.memscope .ms-note { opacity: .8; }
.memscope.memscope.memscope code { font: 12.5px/1.4 ui-monospace, monospace; background: none; color: inherit;
  padding: 0; white-space: inherit; }
.memscope .ms-scroll { overflow-x: auto; }
.memscope.memscope table { border-collapse: collapse; table-layout: auto; margin: 0; width: 100%;
  font-variant-numeric: tabular-nums; }
.memscope.memscope tbody tr:nth-child(n) { background: none; }
.memscope.memscope th { font-weight: 600; opacity: .8; }
.memscope.memscope :is(th, td) { text-align: left; padding: .25em .7em .25em 0; border-bottom: 1px solid var(--ms-line);
  white-space: nowrap; background: none; color: inherit; }
.memscope.memscope :is(th, td).ms-n { text-align: right; }
.memscope.memscope tr.ms-peak td:first-child { box-shadow: inset 3px 0 var(--ms-peak); padding-left: .6em; }
.memscope.memscope :is(th, td):first-child { padding-left: .6em; }
.memscope svg { display: block; width: 100%; height: auto; }
.memscope svg text { fill: var(--ms-text); font: 12px system-ui, sans-serif; }
.memscope .ms-key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin: 0 .35em 0 .9em; }
.memscope .mg-still svg { width: auto; max-width: 100%; max-height: 46rem; margin: 0 auto; }
.memscope ol { margin: 0; padding-left: 1.6em; }
.memscope li { padding: .1em 0; }
"""
_IMAGE_STYLE = """
svg { --ms-temporary: #2a87c4; --ms-argument: #8a8a8a; --ms-peak: #d55e00; --ms-line: #8a8a8a55; }
text { fill: #7a7a7a; font: 12px system-ui, sans-serif; }
"""
_PAGE_STYLE = """
:root { color-scheme: light dark; }
body { margin: 2rem auto; padding: 0 1rem; max-width: 62rem; background: Canvas; color: CanvasText; }
"""


def profile_page(profile: Profile) -> str:
    """A whole document, to be saved or opened in a browser."""
    return page(f"{profile.name}: memory", profile_fragment(profile))


def page(title: str, fragment: str) -> str:
    """A fragment as a document of its own."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}</style></head>\n"
        f"<body>{fragment}</body></html>\n"
    )


def profile_fragment(profile: Profile) -> str:
    """The same as a piece of a page, as a notebook shows it."""
    pieces = (_account(profile), _timeline(profile), _table(profile), _path(profile), _graph(profile))
    return f'<div class="memscope"><style>{_STYLE}{GRAPH_STYLE}</style>{"".join(pieces)}</div>'


def profile_document(profile: Profile) -> str:
    """The same for a page that takes styles and SVG away, as GitHub does: the chart is an image."""
    pieces = (
        _account(profile),
        _timeline(profile, as_image=True),
        _table(profile),
        _path(profile),
        graph_document(profile),
    )
    return f'<div class="memscope"><style>{_STYLE}</style>{"".join(pieces)}</div>'


def graph_document(profile: Profile) -> str:
    """The HLO graph around the peak alone, for such a page."""
    return _graph(profile, as_image=True)


def profile_chart(profile: Profile) -> str:
    """The bytes in use over the schedule alone."""
    return f'<div class="memscope"><style>{_STYLE}</style>{_timeline(profile)}</div>'


def _account(profile: Profile) -> str:
    title, *rest = text.account(profile)
    lines = "".join(f"<p{'' if k == 0 else ' class=ms-note'}>{escape(line.strip())}</p>" for k, line in enumerate(rest))
    return f"<h2>{escape(title)}</h2>{lines}"


def _timeline(profile: Profile, as_image: bool = False) -> str:
    if not max(profile.timeline, default=0):
        return ""
    label = f"The most, {format_bytes(max(profile.timeline))}, is in use at {text.peak_step(profile)}"
    chart = _chart(profile, label)
    return (
        f"<h3>Bytes in use over the schedule</h3>{image.as_image(chart, _IMAGE_STYLE, label) if as_image else chart}"
        f"<p>{_key('argument', 'arguments, results, constants')}{_key('temporary', 'temporaries')}</p>"
        f"<p class=ms-note>{escape(label)}.</p>"
    )


def _chart(profile: Profile, label: str) -> str:
    width, height = _CHART
    top = max(profile.timeline)
    steps = text.buckets(profile, _BUCKETS)
    held = profile.peak_bytes - profile.temp_bytes
    bars = "".join(_bar(profile, step, k, len(steps), held, top) for k, step in enumerate(steps))
    peak_at = max(range(len(steps)), key=lambda k: profile.timeline[steps[k]])
    return (
        f'<svg viewBox="0 0 {_LEFT + width + 8} {_TOP + height + _BOTTOM}" shape-rendering="crispEdges" '
        f'role="img" aria-label="{escape(label)}">'
        f"{_scale(top)}{bars}{_peak_mark(peak_at, len(steps))}"
        f'<text x="{_LEFT}" y="{_TOP + height + 20}">step 1</text>'
        f'<text x="{_LEFT + width}" y="{_TOP + height + 20}" text-anchor="end">'
        f"step {len(profile.timeline)}</text></svg>"
    )


def _scale(top: int) -> str:
    width, height = _CHART
    marks = []
    for part in (0.0, 0.5, 1.0):
        y = _TOP + height * (1 - part)
        marks.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--ms-line)"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{format_bytes(top * part)}</text>'
        )
    return "".join(marks)


def _bar(profile: Profile, step: int, k: int, count: int, held: int, top: int) -> str:
    width, height = _CHART
    x, wide = _LEFT + width * k / count, width / count + 0.2
    total = profile.timeline[step]
    source = profile.step_sources[step]
    what = f"step {step + 1}: {profile.steps[step]}" + (f", {source}" if source else "")
    base, full = height * min(held, total) / top, height * total / top
    return (
        f"<g><title>{escape(f'{format_bytes(total)} at {what}')}</title>"
        f'<rect x="{x:.2f}" y="{_TOP + height - base:.2f}" width="{wide:.2f}" height="{base:.2f}" '
        'fill="var(--ms-argument)"/>'
        f'<rect x="{x:.2f}" y="{_TOP + height - full:.2f}" width="{wide:.2f}" height="{full - base:.2f}" '
        'fill="var(--ms-temporary)"/></g>'
    )


def _peak_mark(k: int, count: int) -> str:
    width, height = _CHART
    x = _LEFT + width * (k + 0.5) / count
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 4}" y2="{_TOP + height}" stroke="var(--ms-peak)" '
        'stroke-width="2" stroke-dasharray="4 3"/>'
        f'<text x="{x:.1f}" y="{_TOP - 6}" text-anchor="middle">peak</text>'
    )


def _key(kind: str, label: str) -> str:
    return f'<span class="ms-key" style="background:var(--ms-{kind})"></span>{escape(label)}'


def _table(profile: Profile) -> str:
    buffers = [b for b in profile.buffers if b.bytes]
    if not buffers:
        return ""
    rows = "".join(_row(b, profile) for b in buffers[:ROWS])
    rest = len(buffers) - ROWS
    more = f"<p class=ms-note>and {rest} smaller ones</p>" if rest > 0 else ""
    head = "<th class=ms-n>bytes</th><th>array</th><th>made by</th><th>line</th><th>steps</th><th>in use</th>"
    keys = "".join(_key(kind, kind) for kind in ("argument", "output", "temporary", "constant"))
    return (
        f"<h3>Largest buffers</h3><div class=ms-scroll><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
        f"</table></div><p>{keys}{_key('peak', 'at the peak')}</p>{more}"
    )


def _row(buffer: Buffer, profile: Profile) -> str:
    made = f"argument {buffer.name}" if buffer.kind == "argument" else buffer.op
    cells = (f"<code>{escape(c)}</code>" for c in (text.array(buffer), made, buffer.source or ""))
    return (
        f'<tr{" class=ms-peak" if buffer.live_at_peak else ""} title="{escape(buffer.hlo)}">'
        f"<td class=ms-n>{format_bytes(buffer.bytes)}</td>{_cells(cells)}"
        f"<td>{escape(text.lifetime(buffer, profile))}</td><td>{_lifetime_bar(buffer, profile)}</td></tr>"
    )


def _cells(contents: Iterable[str]) -> str:
    return "".join(f"<td>{content}</td>" for content in contents)


def _lifetime_bar(buffer: Buffer, profile: Profile) -> str:
    steps = len(profile.timeline)
    x, wide = 120 * buffer.defined_at / steps, 120 * (buffer.freed_at - buffer.defined_at + 1) / steps
    peak = 120 * (profile.peak_step + 0.5) / steps
    return (
        '<svg viewBox="0 0 120 12" style="width:120px" aria-hidden="true">'
        '<rect y="5" width="120" height="2" fill="var(--ms-line)"/>'
        f'<rect x="{x:.1f}" y="2" width="{max(wide, 1.5):.1f}" height="8" rx="1.5" fill="var(--ms-{buffer.kind})"/>'
        f'<line x1="{peak:.1f}" x2="{peak:.1f}" y1="0" y2="12" stroke="var(--ms-peak)" stroke-width="1.5"/></svg>'
    )


def _path(profile: Profile) -> str:
    if len(profile.peak_path) < 2:
        return ""
    items = []
    for name, buffer in profile.peak_path:
        size, instruction, what, line = text.path_step(name, buffer)
        items.append(
            f"<li>{escape(size)} <code>{escape(what)}</code> {escape(line)} "
            f"<span class=ms-note><code>{escape(instruction)}</code></span></li>"
        )
    return f"<h3>How the largest buffer at the peak comes about, and what lets it go</h3><ol>{''.join(items)}</ol>"


def _graph(profile: Profile, as_image: bool = False) -> str:
    drawn = picture(profile.graph, peak_view(profile.graph, _NODES))
    if not drawn.skeleton.boxes:
        return ""
    label = f"HLO instructions around the peak of {profile.name}"
    said = f"<p class=ms-note>{escape(caption(drawn, 'they are not drawn'))}</p>"
    if as_image:
        return f"<h3>What computes what, around the peak</h3>{graph_image(drawn, label)}{said}"
    return (
        "<h3>What computes what, around the peak</h3><div class=mg-graph>"
        f"<div class=mg-still>{graph_svg(drawn, label)}</div>{legend(drawn)}{said}</div>"
    )
