"""The panel for a GPU that is not here, and several of them side by side, in a real JupyterLab."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from memscope.sizes import format_bytes
from memscope.target import resolve
from memscope_jupyter.targets import USUAL, compiler_missing
from tests.browser.lab import PATIENCE, Desk, Lab, open_tab

expect.set_options(timeout=PATIENCE)
pytestmark = pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())

KNN = """\
import jax, jax.numpy as jnp

def knn(queries, points):
    distances = jnp.sum(queries**2, 1)[:, None] - 2 * queries @ points.T + jnp.sum(points**2, 1)
    return jax.lax.top_k(-distances, 5)

def table(x):
    return jnp.sin(x[:, None] * x)

queries, points = (jax.ShapeDtypeStruct((n, 16), "float32") for n in (150_000, 30_000))
%load_ext memscope
from memscope_jupyter.opening import open_panels"""

STATE = "list(open_panels.values())[-1].state"


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Any) -> None:
    too_large = "%memsafe --target t4 table(jax.ShapeDtypeStruct((70_000,), 'float32'))"
    lab.write("gpu.ipynb", [KNN, "%memsafe --target a100-40gb knn(queries, points)", too_large])
    desk = Desk(lab, page)
    desk.open("gpu.ipynb")
    desk.run(0)
    desk.run(1)
    expect(desk.panel().locator("[data-drawn]")).to_be_visible()
    desk.stop_watching()


@pytest.fixture
def panel(notebook: None, desk: Desk) -> Locator:
    return desk.panel()


def test_a_gpu_that_is_not_here(panel: Locator, desk: Desk, lab: Lab) -> None:
    a100 = resolve("a100-40gb")
    may_use = f"a program may use {format_bytes(a100.capacity_bytes)} of its {format_bytes(a100.memory_bytes or 0)}"
    expect(panel.locator(".ms-header")).to_contain_text(f"knn on a100-40gb ({may_use})")
    typed = panel.get_by_role("textbox", name="Memory limit in bytes")
    typed.fill("2GiB")
    typed.press("Enter")
    expect(panel.locator(".ms-verdict")).to_have_text("FITS")
    expect(panel.locator(".ms-how")).to_have_text("✓ confirmed by XLA")
    expect(panel.get_by_role("button", name="Cancel")).to_be_disabled()
    open_tab(panel, "Rewrite")
    expect(panel).to_contain_text("never exists whole")
    open_tab(panel, "Run")
    expect(panel).to_contain_text("knn can't run here, as no a100-40gb is attached: export it and run it on that GPU")
    expect(panel.get_by_role("button", name="Run and check")).to_be_disabled()
    panel.get_by_role("button", name="Apply as knn_safe").click()
    expect(panel.get_by_role("status")).to_contain_text("a call of it here raises TargetError")
    called = desk.evaluate("knn_safe(jnp.ones((150_000, 16)), jnp.ones((30_000, 16)))")
    assert called.startswith("knn was planned for a100-40gb, which is not here")
    for name in ("knn_a100.py", "knn_a100.jaxexport"):
        panel.locator(".widget-text input").last.fill(name)
        panel.get_by_role("button", name="Export").click()
        expect(panel.get_by_role("status")).to_contain_text(f"Written to {name}.")
        assert (lab.folder / name).stat().st_size > 1000


def test_gpus_side_by_side(panel: Locator, desk: Desk) -> None:
    open_tab(panel, "Targets")
    panel.get_by_role("button", name=f"Compare {len(USUAL)} GPUs").click()
    rows = panel.get_by_role("grid").filter(visible=True).locator("tbody tr")
    expect(rows).to_have_count(len(USUAL))
    expect(rows.filter(has_text="waiting")).to_have_count(0)
    expect(rows.filter(has_text="t4")).to_contain_text(re.compile("does not fit.*about .*x the time"))
    expect(rows.filter(has_text="h100").locator("td").nth(3)).to_have_text("fits")
    peak = int(desk.evaluate(f"{STATE}.compared['t4'].peak_bytes"))
    expect(rows.filter(has_text="t4")).to_contain_text(format_bytes(peak))
    expect(panel.get_by_role("button", name=f"Compare {len(USUAL)} GPUs")).to_be_disabled()
    expect(panel.get_by_role("button", name="Cancel")).to_be_disabled()


def test_a_gpu_that_is_too_small(notebook: None, desk: Desk) -> None:
    desk.run(2)
    panel = desk.panel(1)
    expect(panel.locator(".ms-verdict")).to_have_text("DOES NOT FIT")
    status = panel.get_by_role("status")
    expect(status).to_contain_text("No limit helps, as on t4 a program may use")
    expect(status).to_contain_text("there is room for 18.3 GiB on a100-40gb, a6000, h100 or larger")
    expect(status).not_to_contain_text("Raise the limit")
    panel.get_by_role("slider", name="Memory limit").press("End")
    expect(panel.locator(".ms-how")).to_have_text("✓ confirmed by XLA")
    expect(panel.locator(".ms-verdict")).to_have_text("TOO LARGE FOR T4")
