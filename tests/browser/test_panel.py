"""The panel in a real JupyterLab: what a person sees and does."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from memscope.sizes import format_bytes
from tests.browser.lab import PATIENCE, ROOT, Desk, Lab, open_tab, selected_row

expect.set_options(timeout=PATIENCE)

KNN = """\
import jax, jax.numpy as jnp, numpy as np

def knn(queries, points):
    distances = jnp.sum(queries**2, 1)[:, None] - 2 * queries @ points.T + jnp.sum(points**2, 1)
    closeness, index = jax.lax.top_k(-distances, 5)
    return -closeness, index

def broken(queries):
    if queries[0, 0] > 0:
        return queries

rng = np.random.default_rng(0)
queries, points = (rng.normal(size=(n, 16)).astype(np.float32) for n in (500, 5000))
%load_ext memscope
from memscope_jupyter.opening import open_panels"""

TRAINING = """\
import jax, jax.numpy as jnp

def loss(weights, x, y):
    for w, b in weights:
        x = x + jnp.tanh(x @ w + b)
    return jnp.mean((x - y) ** 2)

def step(weights, moments, x, y):
    value, slopes = jax.value_and_grad(loss)(weights, x, y)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, slopes)
    return jax.tree.map(lambda w, m: w - 1e-3 * m, weights, moments), moments, value

layer = jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((64,), "float32")
batch = jax.ShapeDtypeStruct((4096, 64), "float32")
%load_ext memscope
from memscope_jupyter.opening import open_panels"""

STATE = "list(open_panels.values())[-1].state"


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Any) -> None:
    """A notebook with the panel in its second cell, open."""
    cells = [KNN, "%memsafe knn(queries, points)", "%memsafe -l 10KiB knn(queries, points)", "%memsafe broken(queries)"]
    lab.write("knn.ipynb", cells)
    desk = Desk(lab, page)
    desk.open("knn.ipynb")
    desk.run(0)
    desk.stop_watching()


@pytest.fixture
def panel(notebook: None, desk: Desk) -> Locator:
    """A fresh panel, its chart drawn."""
    desk.run(1)
    frame = desk.panel()
    expect(frame.locator("[data-drawn]")).to_be_visible()
    return frame


@pytest.fixture
def explored(panel: Locator) -> Locator:
    """A fresh panel, its frontier complete."""
    expect(panel.locator(".ms-middle")).to_have_text("○ plans")
    return panel


def plan_at(panel: Locator, limit: str) -> None:
    """Types a limit, and waits for XLA to confirm it."""
    typed = panel.get_by_role("textbox", name="Memory limit in bytes")
    typed.fill(limit)
    typed.press("Enter")
    expect(panel.locator(".ms-how")).to_have_text("✓ confirmed by XLA")
    expect(typed).to_have_value(format_bytes(float(limit.removesuffix("KiB")) * 1024))
    expect(panel.get_by_role("button", name="Cancel")).to_be_disabled()


def test_the_panel_says_where_the_memory_goes(panel: Locator, desk: Desk) -> None:
    peak = int(desk.evaluate(f"{STATE}.profile.peak_bytes"))
    header = panel.locator(".ms-header")
    expect(header).to_contain_text(f"knn on cpu ({format_bytes(int(desk.evaluate(f'{STATE}.target.capacity_bytes')))})")
    expect(header).to_contain_text(f"peak {format_bytes(peak)}")
    expect(header).to_contain_text("FITS")
    expect(panel.locator(".ms-line[aria-current]")).to_contain_text("distances = jnp.sum(queries**2, 1)")


def test_the_slider_by_mouse(explored: Locator, desk: Desk) -> None:
    panel = explored
    slider = panel.get_by_role("slider", name="Memory limit")
    box = slider.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    desk.page.mouse.move(box["x"] + box["width"] - 8, y)
    desk.page.mouse.down()
    desk.page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=8)
    expect(panel.locator(".ms-how")).to_have_text("≈ predicted")
    predicted = panel.locator(".ms-peak-change").inner_text()
    desk.page.mouse.up()
    expect(panel.locator(".ms-how")).to_have_text("✓ confirmed by XLA")
    assert "→" in predicted
    agree(panel, desk)


def test_the_slider_by_keyboard(explored: Locator, desk: Desk) -> None:
    panel = explored
    slider = panel.get_by_role("slider", name="Memory limit")
    slider.focus()
    before = slider.get_attribute("aria-valuetext")
    slider.press("PageDown")
    assert slider.get_attribute("aria-valuetext") != before
    assert "predicted" in str(slider.get_attribute("aria-valuetext"))
    expect(panel.locator(".ms-how")).to_have_text("✓ confirmed by XLA")
    agree(panel, desk)
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("confirmed by XLA"))
    agree(panel, desk)
    assert desk.evaluate(f"{STATE}.limit == {STATE}.floor_bytes") == "True"


def agree(panel: Locator, desk: Desk) -> None:
    """What the header says is what Python's plan says."""
    expect(panel.get_by_role("button", name="Cancel")).to_be_disabled()
    facts = ("limit_bytes", "peak_bytes", "original_peak_bytes", "compiled.hidden_bytes")
    limit, peak, original, hidden = (int(desk.evaluate(f"{STATE}.plan.{fact}")) for fact in facts)
    assert desk.evaluate(f"{STATE}.limit") == str(limit)
    assert peak <= limit
    after = "" if peak == original else f" → {'at most ' if hidden else ''}{format_bytes(peak)}"
    expect(panel.locator(".ms-peak-change")).to_have_text(f"peak {format_bytes(original)}{after}")
    expect(panel.get_by_role("textbox", name="Memory limit in bytes")).to_have_value(format_bytes(limit))


def test_one_selection_in_every_view(panel: Locator, desk: Desk) -> None:
    bars = panel.locator(".ms-chart .bars .point path")
    boxes = [(bar.bounding_box(), bar) for bar in bars.all()]
    tall = [(box, bar) for box, bar in boxes if box is not None and box["height"] > 100]
    box = max((box for box, _ in tall), key=lambda box: box["x"])  # the last tall one: the negated distances
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    desk.page.mouse.move(*middle)
    for said in ("9.54 MiB float32[500,5000] neg", "In[1]:5", "step 6 of 7", "in use"):
        expect(panel.locator(".hoverlayer")).to_contain_text(said)
    desk.page.mouse.click(*middle)
    expect(panel.locator(".ms-line[aria-current]")).to_contain_text("closeness, index = jax.lax.top_k(-distances, 5)")
    open_tab(panel, "Buffers")
    row = selected_row(panel)
    expect(row).to_contain_text("neg")
    row.press("ArrowUp")
    expect(panel.locator(".ms-line[aria-current]")).to_contain_text("distances = jnp.sum(queries**2, 1)")
    expect(panel.locator(".ms-chosen")).to_contain_text("float32[500,5000]")


def test_a_click_in_the_graph_selects_everywhere(panel: Locator) -> None:
    open_tab(panel, "Graph")
    panel.get_by_role("searchbox").filter(visible=True).fill("index = jax.lax.top_k")
    expect(panel.locator(".mg-box.mg-hit", has_text="top_k")).not_to_have_count(0)
    panel.locator(".mg-box", has_text="top_k").first.click()
    expect(panel.locator(".ms-line[aria-current]")).to_contain_text("closeness, index = jax.lax.top_k(-distances, 5)")
    open_tab(panel, "Buffers")
    row = selected_row(panel)
    expect(row).to_contain_text("top_k")
    row.press("Home")
    open_tab(panel, "Graph")
    expect(panel.locator(".mg-box.mg-chosen")).to_contain_text("dot_general")


def test_the_table_sorts_and_filters(panel: Locator) -> None:
    open_tab(panel, "Buffers")
    table = panel.get_by_role("grid").filter(visible=True)
    sizes = table.locator("tbody td:first-child")
    largest = sizes.first.inner_text()
    table.get_by_role("button", name="bytes").click()
    expect(table.locator("th").first).to_have_attribute("aria-sort", "descending")
    table.get_by_role("button", name="bytes").click()
    expect(table.locator("th").first).to_have_attribute("aria-sort", "ascending")
    expect(sizes.last).to_have_text(largest)


def test_a_narrow_window_cuts_nothing_off(panel: Locator, desk: Desk) -> None:
    desk.page.set_viewport_size({"width": 600, "height": 1150})
    try:
        for tab in ("Buffers", "Rewrite", "Run", "Targets", "Timeline"):
            open_tab(panel, tab)
            assert panel.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
        for shown in (".ms-how", ".ms-typed", ".ms-verdict", ".memscope-buttons button:last-child"):
            panel.locator(shown).scroll_into_view_if_needed()
            expect(panel.locator(shown)).to_be_in_viewport(ratio=1)
    finally:
        desk.page.set_viewport_size({"width": 1100, "height": 1150})


def test_another_way_by_hand(panel: Locator, desk: Desk) -> None:
    plan_at(panel, "2000KiB")
    open_tab(panel, "Rewrite")
    expect(panel).to_contain_text("never exists whole")
    expect(panel.get_by_role("button", name="Compile this way")).to_be_disabled()
    table = panel.get_by_role("grid").filter(visible=True)
    chosen = table.locator("tr:not(.ms-marked)").filter(has_text="yes").first
    steps = chosen.locator("td").nth(1).inner_text()
    chosen.click()
    expect(chosen.locator("td").nth(2)).to_have_text(re.compile("^about"))
    panel.get_by_role("button", name="Compile this way").click()
    expect(table.locator("tr.ms-marked td").nth(1)).to_have_text(steps)
    assert desk.evaluate(f"{STATE}.plan.loops[0].chunk") == steps.split(" of ")[0].replace(",", "")
    peak = format_bytes(int(desk.evaluate(f"{STATE}.plan.peak_bytes")))
    expect(table.locator("tr.ms-marked td").nth(2)).to_have_text(re.compile(f"^✓ (at most )?{peak}$"))
    table.get_by_role("button", name="steps at a time").click()
    cells = table.locator("td:nth-child(2)").all_inner_texts()
    shares = [int(count) / int(size) for count, size in (cell.replace(",", "").split(" of ") for cell in cells)]
    assert shares == sorted(shares, reverse=True)
    assert max(shares) < 1


def test_apply_run_and_export(panel: Locator, desk: Desk, lab: Lab) -> None:
    plan_at(panel, "2000KiB")
    panel.get_by_role("button", name="Apply as knn_safe").click()
    expect(panel.get_by_role("status")).to_contain_text("knn_safe is bound")
    assert (
        desk.evaluate("bool(jnp.allclose(knn_safe(queries, points)[0], knn(queries, points)[0], atol=1e-3))") == "True"
    )
    panel.get_by_role("button", name="Run and check").click()
    run = panel.locator(".ms-words").filter(visible=True)
    expect(run).to_contain_text("The values agree.")
    expect(run).to_contain_text("on the given arguments")
    panel.locator(".widget-text input").last.fill("taken.py")
    panel.get_by_role("button", name="Export").click()
    expect(panel.get_by_role("status")).to_contain_text("Written to taken.py.")
    assert same_values_elsewhere(lab.folder / "taken.py") == "same"
    panel.get_by_role("button", name="Export").click()
    expect(panel.get_by_role("status")).to_contain_text(
        "Written to taken_2.py. taken.py was there already and is kept."
    )
    plan_at(panel, "1000KiB")
    expect(panel.get_by_role("status")).to_contain_text("knn_safe is bound: 1.95 MiB at most")
    expect(run).to_contain_text("The version for 1.95 MiB, not the one above")
    expect(run).to_contain_text("The values agree.")


def same_values_elsewhere(exported: pathlib.Path) -> str:
    """Runs the file in a fresh process that can't import memscope."""
    program = f"""
        import sys
        sys.modules["memscope"] = None
        import jax, jax.numpy as jnp, numpy as np, runpy
        knn_safe = runpy.run_path({str(exported)!r})["knn_safe"]
        rng = np.random.default_rng(0)
        q, x = (rng.normal(size=(n, 16)).astype(np.float32) for n in (500, 5000))
        d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
        values, index = jax.lax.top_k(-d, 5)
        got = knn_safe(q, x)
        assert jnp.allclose(got[0], -values, atol=1e-3) and (got[1] == index).mean() > 0.999
        print("same")
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=exported.parent, check=False)
    return done.stdout.strip() or done.stderr


def test_an_export_that_can_not_be_written_says_what_to_do(panel: Locator) -> None:
    plan_at(panel, "2000KiB")
    panel.locator(".widget-text input").last.fill("nowhere/knn.py")
    panel.get_by_role("button", name="Export").click()
    expect(panel.get_by_role("status")).to_contain_text("there is no folder nowhere; make it first.")


def test_a_limit_that_is_none_and_one_that_can_not_be_met(panel: Locator) -> None:
    typed = panel.get_by_role("textbox", name="Memory limit in bytes")
    typed.fill("lots")
    typed.press("Enter")
    expect(panel.get_by_role("status")).to_contain_text("limit 'lots' is not a size")
    typed.fill("10KiB")
    typed.press("Enter")
    expect(panel.locator(".ms-verdict")).to_have_text("DOES NOT FIT")
    expect(panel.get_by_role("status")).to_contain_text(
        "knn can't run in 10.0 KiB: the lowest peak that memscope can reach is"
    )
    expect(panel.get_by_role("status")).to_contain_text(re.compile(r"Raise the limit to [\d.]+ KiB or more"))
    expect(panel.get_by_role("button", name="Apply as knn_safe")).to_be_disabled()


HELD = f"({STATE}.profile, {STATE}.plan, {STATE}.plan.compiled)"
KEEP_REFS = f"globals().update(refs=[__import__('weakref').ref(part) for part in {HELD}])"
LIVE_REFS = "[__import__('gc').collect(), [ref() for ref in refs]][1]"


def test_closing_frees_what_the_panel_held(panel: Locator, desk: Desk) -> None:
    desk.evaluate(KEEP_REFS)
    panel.get_by_role("button", name="Close").click()
    expect(desk.panel()).to_have_count(0)
    expect(desk.page.locator(".jp-OutputArea-output .memscope")).to_be_visible()
    assert eventually(desk, LIVE_REFS, "[None, None, None]")


def test_a_panel_lives_while_a_cell_runs(panel: Locator, desk: Desk) -> None:
    plan_at(panel, "2000KiB")
    desk.keep_busy(10)
    start = time.monotonic()
    panel.get_by_role("button", name="Apply as knn_safe").click()
    expect(panel.get_by_role("status")).to_contain_text("knn_safe is bound")
    panel.get_by_role("button", name="Close").click()
    expect(desk.panel()).to_have_count(0)
    assert time.monotonic() - start < 10
    assert desk.evaluate("callable(knn_safe)") == "True"


def test_running_the_cell_again_frees_it_too(panel: Locator, desk: Desk) -> None:
    desk.evaluate(KEEP_REFS)
    desk.run(1)
    expect(panel.locator("[data-drawn]")).to_be_visible()
    expect(desk.page.locator(".memscope-frame")).to_have_count(1)
    assert eventually(desk, LIVE_REFS, "[None, None, None]")


def eventually(desk: Desk, code: str, wanted: str) -> bool:
    """Whether an expression comes to print what is wanted."""
    deadline = time.monotonic() + PATIENCE / 1000
    while desk.evaluate(code) != wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_a_cell_whose_limit_can_not_be_met(notebook: None, desk: Desk) -> None:
    desk.run(2)
    cell = desk.page.locator(".jp-Cell").nth(2)
    expect(cell.locator(".ms-verdict")).to_have_text("DOES NOT FIT")
    expect(cell.locator(".ms-status")).to_contain_text("knn can't run in 10.0 KiB")
    expect(cell).to_contain_text("Nothing is bound; the panel says what is in the way.")
    expect(cell).not_to_contain_text("Traceback")


def test_a_function_that_raises_shows_its_own_traceback(notebook: None, desk: Desk) -> None:
    desk.run(3)
    cell = desk.page.locator(".jp-Cell").nth(3)
    expect(cell).to_contain_text("if queries[0, 0] > 0:")
    expect(cell).to_contain_text("TracerBoolConversionError")
    expect(cell).not_to_contain_text("memscope_jupyter")
    expect(cell.locator(".memscope-frame")).to_have_count(0)


def test_the_options_complete_with_tab_and_have_help(notebook: None, desk: Desk) -> None:
    desk.type_in_new_cell("%memsafe --")
    desk.page.keyboard.press("Tab")
    for option in ("--limit", "--target", "--export", "--name", "--run", "--quiet"):
        expect(desk.page.locator(".jp-Completer")).to_contain_text(option)
    desk.page.keyboard.press("Escape")
    desk.type_in_new_cell("%memsafe?")
    desk.page.keyboard.press("Shift+Enter")
    expect(desk.page.locator(".jp-Notebook")).to_contain_text("Without --limit nothing is bound until you press Apply")


SLIDE = """async (frame) => {
    const range = frame.querySelector(".ms-slider input");
    const text = () => frame.querySelector(".ms-typed").value + frame.querySelector(".ms-peak-change").textContent;
    const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const took = [];
    for (let at = 199; at > 159; at -= 1) {
        const before = text();
        const start = performance.now();
        range.value = at;
        range.dispatchEvent(new Event("input", { bubbles: true }));
        await painted();
        took.push(performance.now() - start);
        if (text() === before) throw new Error("a step showed nothing new");
    }
    return took;
}"""


def test_a_training_step_of_1500_instructions(lab: Lab, desk: Desk) -> None:
    lab.write("training.ipynb", [TRAINING, "%memsafe step([layer] * 120, [layer] * 120, batch, batch)"])
    desk.open("training.ipynb")
    desk.run(0)
    desk.run(1)
    start = time.monotonic()
    expect(desk.panel().locator("[data-drawn]")).to_be_visible()
    up = time.monotonic() - start
    assert int(desk.evaluate(f"len({STATE}.profile.steps)")) > 1400
    cancel = desk.panel().get_by_role("button", name="Cancel")
    expect(cancel).to_be_enabled()
    start = time.monotonic()
    cancel.click()
    expect(desk.panel().get_by_role("status")).to_contain_text("Cancelled.")
    expect(cancel).to_be_disabled()
    cancelled = time.monotonic() - start
    took = sorted(desk.panel().evaluate(SLIDE))
    median, worst = took[len(took) // 2], took[-1]
    print(f"panel up {up:.1f} s after the cell, cancelled in {cancelled:.1f} s")
    print(f"a slider step shows in {median:.0f} ms, at worst in {worst:.0f} ms")
    assert up < 15
    assert cancelled < 10
    assert median < 300


def test_a_panel_that_python_can_not_hear_says_so(lab: Lab, desk: Desk) -> None:
    """As in a front end that has no subshells: what is pressed waits for the cell that runs."""
    lab.write("deaf.ipynb", [KNN, "%memsafe knn(queries, points)"])
    desk.open("deaf.ipynb")
    desk.no_subshells()
    desk.run(0)
    desk.run(1)
    panel = desk.panel()
    expect(panel.locator("[data-drawn]")).to_be_visible()
    desk.keep_busy(5)
    panel.get_by_role("button", name="Apply as knn_safe").click()
    expect(panel.get_by_role("status")).to_contain_text("A cell is running")
    expect(panel.get_by_role("status")).to_contain_text("knn_safe is bound")
    expect(panel.get_by_role("status")).not_to_contain_text("A cell is running")
    desk.keep_busy(5)
    panel.get_by_role("button", name="Close").click()
    assert panel.is_hidden()
    expect(desk.page.locator(".jp-OutputArea").last).to_contain_text("Closed. What the panel holds is freed")
    expect(desk.panel()).to_have_count(0)


def test_the_quickstart(lab: Lab, desk: Desk) -> None:
    shutil.copy(ROOT / "notebooks" / "quickstart.ipynb", lab.folder)
    desk.open("quickstart.ipynb")
    desk.start_all()
    expect(desk.panel(0).locator(".ms-header")).to_contain_text("peak 1.50 GiB")
    expect(desk.panel(1).locator(".ms-header")).to_contain_text("FITS")
    expect(desk.panel(1).locator(".ms-how")).to_have_text("✓ confirmed by XLA")
