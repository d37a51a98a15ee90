"""Pictures of every tab, light and dark, wide and narrow, with much to show and with little, for a critical eye.

python -m tests.browser.screenshots [FOLDER]
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

from playwright.sync_api import Locator, sync_playwright

from tests.browser.lab import Desk, chromium, open_tab, running_lab

CELLS = [
    """\
import jax, jax.numpy as jnp, numpy as np

def attention(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores)
    return weights @ v

rng = np.random.default_rng(0)
q, k, v = (rng.normal(size=(4, 1024, 32)).astype(np.float32) for _ in range(3))
%load_ext memscope""",
    "%memsafe --limit 4MiB attention(q, k, v)",
    "%memsafe --limit 100KiB attention(q, k, v)",
    "%memsafe attention(q, k, v)",
]
TABS = ("Timeline", "Buffers", "Graph", "Rewrite", "Run", "Targets")
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WIDTHS = {"wide": 1100, "narrow": 600}


def take(desk: Desk, folder: pathlib.Path) -> None:
    """Opens one notebook, and looks at it in every light."""
    desk.lab.write("attention.ipynb", CELLS)
    desk.open("attention.ipynb")
    desk.run(0)
    desk.run(1)
    panel = desk.panel()
    panel.locator("[data-drawn]").wait_for()
    panel.get_by_role("button", name="Run and check").click()
    panel.locator(".ms-done").first.wait_for()
    panel.get_by_text("○ plans").wait_for()
    panel.get_by_role("button", name="Cancel", disabled=True).wait_for()
    _compare(panel)
    for theme, name in THEMES.items():
        desk.page.evaluate(f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{theme: '{name}'}})")
        for size, width in WIDTHS.items():
            desk.page.set_viewport_size({"width": width, "height": 1500})
            _take_tabs(desk, panel, folder / f"{theme}-{size}")
    desk.run(2)
    desk.panel(1).locator("[data-drawn]").wait_for()
    desk.panel(1).screenshot(path=folder / "does-not-fit.png")
    desk.run(3)
    desk.panel(2).locator("[data-drawn]").wait_for()
    _take_tabs(desk, desk.panel(2), folder / "as-written")


def _compare(panel: Locator) -> None:
    """Fills the tab Targets, where XLA's GPU compiler is installed."""
    open_tab(panel, "Targets")
    every = panel.get_by_role("button", name="All")
    if every.is_visible():
        every.click()
        panel.get_by_text("waiting", exact=True).first.wait_for()
        panel.get_by_text("waiting", exact=True).first.wait_for(state="detached")
        panel.get_by_role("button", name="Cancel", disabled=True).wait_for()


def _take_tabs(desk: Desk, panel: Locator, stem: pathlib.Path) -> None:
    for tab in TABS:
        open_tab(panel, tab)
        desk.page.wait_for_timeout(500)  # a theme's change and a chart's redraw have no event to wait for
        panel.screenshot(path=stem.with_name(f"{stem.name}-{tab.lower()}.png"))


def main() -> None:
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as home,
        running_lab(pathlib.Path(home) / "lab") as lab,
        sync_playwright() as playwright,
        chromium(playwright) as browser,
    ):
        desk = Desk(lab, browser.new_page(viewport={"width": 1100, "height": 1500}))
        take(desk, folder)
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
