"""What a cell shows: text and static HTML of the same data, in an output that progress lines give way to.

A panel stands above its report. An exporter that finds an output to be a widget writes nothing else for it, and the
page stays blank where the widgets' scripts can't be loaded: so the report is an output of its own, which hides while
its panel is on the page.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from IPython.display import display

from memscope.call import Call
from memscope.lines import plan_line, profile_line
from memscope.options import Options
from memscope.report.html import profile_document
from memscope.target import resolve

if TYPE_CHECKING:
    from IPython.core.display_functions import DisplayHandle

    from memscope.plan import Plan
    from memscope.profile import Profile


_CODE = "font-family: ui-monospace, monospace; line-height: 1.4; white-space: pre; overflow-x: auto"


class Report:
    """The output of a cell, redrawn as work goes on: one, or the panel's and the report's."""

    def __init__(self, call: Call, options: Options) -> None:
        self._call = call
        self._options = options
        self._handle: DisplayHandle | None = None
        self._below: DisplayHandle | None = None

    def holds(self, profile: Profile) -> bool:
        """True where the target can hold the function as written."""
        return profile.peak_bytes <= resolve(self._options.target).capacity_bytes

    def progress(self, line: str) -> None:
        if not self._options.quiet:
            self._draw({"text/plain": line})

    def show_profile(self, profile: Profile) -> None:
        if self._options.quiet:
            print(profile_line(profile, self._call, self._options))
        else:
            self._draw(_bundle(profile, str(profile), "With --limit SIZE: a version that fits it."))
        self._handle = None  # a plan that follows is shown below it

    def show_plan(self, plan: Plan, name: str) -> None:
        exported = f", written to {self._options.export}" if self._options.export else ""
        if self._options.quiet:
            print(f"{plan_line(plan, self._call, self._options)}: {name}{exported}")
        else:
            self._draw(_bundle(plan, plan.explain().rstrip(), f"{name} is the version that fits{exported}."))

    def show_panel(self, profile: Profile, plan: Plan | None, note: str, model_id: str) -> None:
        """The panel, or a line where none can be, and the report that stands for it."""
        stands = f"memscope's panel for {self._call.name} needs a running kernel. Its report:"
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        self._draw({"text/plain": stands, "application/vnd.jupyter.widget-view+json": view})
        self.show_behind(profile, plan, note, model_id)

    def show_behind(self, profile: Profile, plan: Plan | None, note: str, model_id: str) -> None:
        """The report alone, as it is now; a page with the panel on it hides it."""
        self._draw_below(_behind(_static(profile, plan, note), model_id))

    def show_static(self, profile: Profile, plan: Plan | None, note: str) -> None:
        """What the panel leaves behind."""
        self._draw({"text/plain": f"The panel for {self._call.name} is closed. Its last report:"})
        self._draw_below(_static(profile, plan, note))

    def _draw(self, bundle: dict[str, Any]) -> None:
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _draw_below(self, bundle: dict[str, Any]) -> None:
        if self._below is None:
            self._below = display(bundle, raw=True, display_id=True)
        else:
            self._below.update(bundle, raw=True)


def frame_class(model_id: str) -> str:
    """The class of a panel's frame on the page, and of no other."""
    return f"memscope-frame-{model_id}"


def _behind(bundle: dict[str, str], model_id: str) -> dict[str, str]:
    """The report, hidden while its panel is on the page; in JupyterLab it also waits for the panel to be drawn.

    It stays in a page that nbconvert wrote, whose body is a notebook: a panel there has no kernel.
    """
    report = f"memscope-report-{model_id}"
    style = (
        f"body:not(.jp-Notebook):has(.{frame_class(model_id)}) .{report} {{ display: none; }} "
        f".jp-NotebookPanel .{report} {{ animation: memscope-wait 3s step-end; }} "
        "@keyframes memscope-wait { from { height: 0; overflow: hidden; } }"
    )
    return {**bundle, "text/html": f'<style>{style}</style><div class="{report}">{bundle["text/html"]}</div>'}


def _static(profile: Profile, plan: Plan | None, note: str) -> dict[str, str]:
    """For a page without a kernel, and for one that takes styles and SVG away."""
    explained = f"\n\n{plan.explain().rstrip()}" if plan is not None and plan.changed else ""
    said = f"<pre style='{_CODE}'>{html.escape(explained.strip())}</pre>" if explained else ""
    return {
        "text/plain": f"{profile}{explained}\n\n{note}",
        "text/html": f"{profile_document(profile)}{said}<p>{html.escape(note)}</p>",
    }


def _bundle(result: Any, text: str, note: str) -> dict[str, str]:
    return {
        "text/plain": f"{text}\n\n{note}",
        "text/html": f"{result._repr_html_()}<p>{html.escape(note)}</p>",
    }
