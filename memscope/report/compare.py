"""A comparison of targets as text and HTML: one row each."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..sizes import format_bytes
from .html import page
from .text import columns

if TYPE_CHECKING:
    from ..compare import Comparison, Row

HEADER = ("target", "may use", "peak", "as written", "what would fit")


def comparison_text(comparison: Comparison) -> str:
    """A table, the target first."""
    rows = [cells(row) for row in comparison]
    return "\n".join([f"{comparison.name} on {_count(len(rows))}", *columns(HEADER, rows), *_notes(comparison)])


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """One row's texts."""
    return (
        row.target.name,
        format_bytes(row.capacity_bytes),
        f"{'' if row.compiles else 'about '}{format_bytes(row.peak_bytes)}",
        "fits" if row.fits else "does not fit" if row.compiles else "does not compile",
        _rewritten(row),
    )


def _rewritten(row: Row) -> str:
    if row.plan is None:
        return "-"
    if not row.plan.fits:
        return f"nothing: {format_bytes(row.plan.peak_bytes)} is the lowest peak"
    return (
        f"limit={format_bytes(row.capacity_bytes)!r}: rewritten to {format_bytes(row.plan.peak_bytes)}, about "
        f"{row.slowdown:.2f}x the time"
    )


def _count(count: int) -> str:
    return "1 target" if count == 1 else f"{count} targets"


def _notes(comparison: Comparison) -> list[str]:
    notes = {row.target.capacity_note.partition(": ")[2] for row in comparison} - {""}
    told = [f"  a GPU's memory is {note} of it" for note in sorted(notes)]
    estimated = any(row.plan is not None and row.plan.fits for row in comparison)
    return [*told, *(["  times are estimates"] if estimated else [])]


def comparison_page(comparison: Comparison) -> str:
    """A whole document, to be saved or opened in a browser."""
    return page(f"{comparison.name}: targets", comparison_fragment(comparison))


def comparison_fragment(comparison: Comparison) -> str:
    """The same as a piece of a page, as a notebook shows it."""
    head = "".join(f"<th>{escape(title)}</th>" for title in HEADER)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(row))}</tr>" for row in comparison)
    notes = "".join(f"<p>{escape(note.strip())}</p>" for note in _notes(comparison))
    return (
        f'<div class="memscope-compare"><table><caption>{escape(comparison.name)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}</div>"
    )
