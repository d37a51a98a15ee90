"""The graph in a real JupyterLab: seen, moved, searched, and one selection with Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.lab import PATIENCE, Desk, Lab

expect.set_options(timeout=PATIENCE)

SETUP = """
import os, pathlib, jax, jax.numpy as jnp, memscope
from memscope_jupyter.graph import graph_widget

def deep(x, w):
    first = x
    for _ in range(160):
        x = jnp.sin(x) @ w
    return x + first, jax.lax.fori_loop(0, 5, lambda _, c: jnp.sort(jnp.tanh(c @ w), 0), x)

shapes = jax.ShapeDtypeStruct((300, 64), "float32"), jax.ShapeDtypeStruct((64, 64), "float32")
p = memscope.profile(deep, *shapes)
peak = p.largest_at_peak.name
lines = lambda source: In[1].splitlines()[int(source.rpartition(":")[2]) - 1]
"""
EARLY = """
early = graph_widget(p)
display(early)
early.selected = peak
"""
NO_DOT = """
os.makedirs("bin", exist_ok=True)
pathlib.Path("bin/dot").write_text("#!/bin/sh\\nkill -SEGV $$\\n")
os.chmod("bin/dot", 0o755)
os.environ["PATH"], path = os.path.abspath("bin") + os.pathsep + os.environ["PATH"], os.environ["PATH"]
without = graph_widget(p)
os.environ["PATH"] = path
without
"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Page) -> Iterator[None]:
    lab.write("graph.ipynb", [SETUP, "widget = graph_widget(p, lines)\nwidget", EARLY, NO_DOT])
    desk = Desk(lab, page)
    desk.open("graph.ipynb")
    desk.start_all()
    expect(page.locator(".mg-widget svg[role=img]")).to_have_count(3)
    yield
    desk.stop_watching()
    assert desk.complaints == []


@pytest.fixture
def graph(notebook: None, desk: Desk, page: Page) -> Locator:
    """The first widget, on the peak's neighbourhood and with nothing selected."""
    widget = page.locator(".mg-widget").first
    desk.evaluate("setattr(widget, 'selected', '')")
    widget.locator("input").fill("")
    widget.get_by_role("button", name="Peak").click()
    expect(widget.locator(".mg-caption")).to_have_text(page.locator(".mg-widget .mg-caption").last.inner_text())
    return widget


def wait_for_python(desk: Desk, code: str, value: str) -> None:
    for _ in range(200):
        if desk.evaluate(code) == value:
            return
        desk.page.wait_for_timeout(100)
    assert desk.evaluate(code) == value


def scale(widget: Locator) -> float:
    return float(widget.locator(".mg-canvas").get_attribute("data-scale") or "nan")


def view_box(widget: Locator) -> list[float]:
    return [float(n) for n in (widget.locator("svg[role=img]").get_attribute("viewBox") or "").split()]


def in_view(node: Locator, widget: Locator) -> bool:
    inner, outer = node.bounding_box(), widget.locator(".mg-canvas").bounding_box()
    assert inner is not None
    assert outer is not None
    return (
        outer["x"] <= inner["x"] + inner["width"] / 2 <= outer["x"] + outer["width"]
        and outer["y"] <= inner["y"] + inner["height"] / 2 <= outer["y"] + outer["height"]
    )


def some_box(widget: Locator) -> Locator:
    """The box of an instruction that has a buffer, and is not the peak's."""
    summit = widget.locator(".mg-box.mg-summit").get_attribute("data-buffer")
    found = widget.locator(f'.mg-box.mg-on-path:not([data-buffer=""]):not([data-buffer="{summit}"])').first
    found.scroll_into_view_if_needed()
    return found


def test_it_opens_on_the_peak(graph: Locator, desk: Desk) -> None:
    summit = graph.locator(".mg-box.mg-summit")
    expect(summit).to_have_attribute("data-buffer", desk.evaluate("peak"))
    assert in_view(summit, graph)
    expect(graph.locator(".mg-legend")).to_contain_text("in use at the peak")
    expect(graph.locator(".mg-caption")).to_contain_text("instructions")


def test_a_click_selects_in_python(graph: Locator, desk: Desk) -> None:
    box = some_box(graph)
    box.click()
    expect(box).to_have_class(re.compile("mg-chosen"))
    buffer = box.get_attribute("data-buffer")
    assert buffer
    wait_for_python(desk, "widget.selected", buffer)
    expect(graph.locator(".mg-status")).to_contain_text(buffer)
    expect(graph.locator(".mg-wire.mg-lit").first).to_be_attached()
    graph.locator(".mg-canvas").press("Escape")
    wait_for_python(desk, "widget.selected", "")


def test_a_selection_from_python_is_marked_and_moved_into_view(graph: Locator, desk: Desk) -> None:
    svg = graph.locator("svg[role=img]")
    svg.evaluate("svg => { svg.dataset.before = 'yes'; }")
    for _ in range(6):
        graph.get_by_role("button", name="+", exact=True).click()
    last = graph.locator('.mg-box.mg-on-path:not([data-buffer=""])').last
    desk.evaluate(f"setattr(widget, 'selected', {last.get_attribute('data-buffer')!r})")
    chosen = graph.locator(".mg-box.mg-chosen")
    expect(chosen).to_have_attribute("data-buffer", last.get_attribute("data-buffer") or "")
    assert in_view(chosen, graph)
    assert scale(graph) > 1
    expect(svg).to_have_attribute("data-before", "yes")  # the same drawing, no new layout


def test_a_highlight_takes_a_few_milliseconds(graph: Locator) -> None:
    milliseconds = graph.locator(".mg-canvas").evaluate(
        """canvas => {
            const times = [];
            for (let k = 0; k < 15; k++) {
                const start = performance.now();
                canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "n", bubbles: true }));
                times.push(performance.now() - start);
            }
            return times.sort((a, b) => a - b)[7];
        }"""
    )
    print(f"highlight: {milliseconds:.1f} ms")
    assert milliseconds < 50


def test_a_buffer_that_is_not_drawn_can_be_shown(graph: Locator, desk: Desk) -> None:
    hidden = desk.evaluate(
        "next(n.buffer for n in p.graph.entry.nodes if n.opcode == 'dot' and n.name not in widget._shown.nodes)"
    )
    desk.evaluate(f"setattr(widget, 'selected', {hidden!r})")
    expect(graph.locator(".mg-status")).to_contain_text(f"{hidden} is not in this picture")
    graph.get_by_role("button", name="Show it").click()
    expect(graph.locator(".mg-box.mg-chosen")).to_have_attribute("data-buffer", hidden)
    assert desk.evaluate("widget.selected") == hidden


def test_search_finds_what_is_drawn_and_what_is_not(graph: Locator, desk: Desk) -> None:
    box = graph.get_by_role("searchbox")
    box.fill("dot_general")
    expect(graph.locator(".mg-found")).to_have_text(re.compile(r"\d+ found, \d+ drawn"))
    assert graph.locator(".mg-box.mg-hit").count() > 0
    box.press("Enter")
    expect(graph.locator(".mg-found")).to_have_text(re.compile(r"1 of \d+"))
    assert in_view(graph.locator(".mg-box.mg-chosen"), graph)
    box.fill("while")
    expect(graph.locator(".mg-found")).to_have_text(re.compile("[1-9] found"))
    box.press("Enter")
    expect(graph.locator(".mg-box.mg-chosen")).to_contain_text("while")
    for words in ("float32[300,64]", "sin(x) @ w"):  # a shape, and the text of a source line
        box.fill(words)
        expect(graph.locator(".mg-found")).to_have_text(re.compile("[1-9][0-9]* found, [1-9]"))
    box.fill("no such thing")
    expect(graph.locator(".mg-found")).to_have_text("0 found, 0 drawn")
    box.press("Escape")
    expect(box).to_have_value("")


def test_expanding_draws_the_hidden_neighbours(graph: Locator) -> None:
    shown = graph.locator(".mg-box")
    before = shown.count()
    edge = graph.locator(".mg-box:has(.mg-more)").first
    name = edge.get_attribute("data-node")
    edge.locator(".mg-more").dispatch_event("pointerdown", {"button": 0})
    edge.locator(".mg-more").dispatch_event("pointerup", {"button": 0, "bubbles": True})
    expect(graph.locator(f'.mg-box[data-node="{name}"] .mg-more')).to_have_count(0)
    assert shown.count() > before
    graph.get_by_role("button", name=re.compile(r"Show \d+ more")).click()
    expect(graph.locator(".mg-caption")).to_contain_text(re.compile(r"Shown: all \d+ instructions"))
    expect(graph.locator(".mg-more")).to_have_count(0)


def test_loops_and_fusions_open(graph: Locator) -> None:
    search = graph.get_by_role("searchbox")
    search.fill("while")
    search.press("Enter")
    expect(graph.locator(".mg-box.mg-chosen")).to_contain_text("while")
    graph.get_by_role("button", name="Open body").click()
    expect(graph.locator(".mg-trail")).to_contain_text("body of while")
    expect(graph.locator(".mg-box", has_text="sort")).to_have_count(1)
    fusion = graph.locator(".mg-box", has_text="tanh (fusion)")
    fusion.dblclick()
    expect(graph.locator(".mg-trail")).to_contain_text("fusion of")
    expect(graph.locator(".mg-caption")).to_contain_text("Inside the fusion")
    expect(graph.locator(".mg-box.mg-free", has_text="tanh")).to_have_count(1)
    graph.get_by_role("button", name="program").click()
    expect(graph.locator(".mg-trail")).to_be_hidden()


def test_long_edges_are_drawn_on_selection_only(graph: Locator, desk: Desk) -> None:
    graph.get_by_role("button", name=re.compile(r"Show \d+ more")).click()
    expect(graph.locator(".mg-caption")).to_contain_text("drawn when one of their ends is selected")
    expect(graph.locator(".mg-long path")).to_have_count(0)
    head = desk.evaluate("widget._latest['long'][0][1]")
    end = graph.locator(f'.mg-box[data-box="{head}"]')
    end.dispatch_event("pointerdown", {"button": 0})
    end.dispatch_event("pointerup", {"button": 0, "bubbles": True})
    expect(graph.locator(".mg-long path")).not_to_have_count(0)


def test_zoom_by_buttons_keys_and_wheel(graph: Locator, page: Page) -> None:
    canvas = graph.locator(".mg-canvas")
    before = scale(graph)
    graph.get_by_role("button", name="+", exact=True).click()
    assert scale(graph) == pytest.approx(before * 1.3, rel=0.01)
    canvas.press("-")
    assert scale(graph) == pytest.approx(before, rel=0.01)
    canvas.press("f")
    fitted = scale(graph)
    canvas.hover()
    page.mouse.wheel(0, 10)
    page.wait_for_timeout(200)
    assert scale(graph) == fitted  # a wheel alone scrolls the notebook
    canvas.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_timeout(200)
    assert scale(graph) > fitted


def test_dragging_and_arrows_move_the_picture_and_select_nothing(graph: Locator, desk: Desk, page: Page) -> None:
    canvas = graph.locator(".mg-canvas")
    canvas.scroll_into_view_if_needed()
    frame = canvas.bounding_box()
    assert frame is not None
    x, y = frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2
    before = view_box(graph)
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 40, steps=4)
    page.mouse.up()
    after = view_box(graph)
    assert before[0] - after[0] == pytest.approx(60 / scale(graph), abs=1)
    assert before[1] - after[1] == pytest.approx(40 / scale(graph), abs=1)
    canvas.press("ArrowRight")
    assert view_box(graph)[0] == pytest.approx(after[0] + 60 / scale(graph), abs=1)
    assert desk.evaluate("widget.selected") == ""


def test_keys_typed_in_the_graph_are_no_commands_of_the_notebook(graph: Locator, page: Page) -> None:
    cells = page.locator(".jp-Cell").count()
    for key in "abdxnm":
        graph.locator(".mg-canvas").press(key)
    assert page.locator(".jp-Cell").count() == cells


def test_a_selection_made_before_the_page_was_up_is_marked(graph: Locator, desk: Desk, page: Page) -> None:
    early = page.locator(".mg-widget").nth(1)
    expect(early.locator(".mg-box.mg-chosen")).to_have_attribute("data-buffer", desk.evaluate("peak"))


def test_a_graphviz_that_crashes_leaves_a_picture(graph: Locator, page: Page) -> None:
    without = page.locator(".mg-widget").nth(2)
    assert without.locator(".mg-box").count() == graph.locator(".mg-box").count()
    assert without.locator(".mg-wire").count() == graph.locator(".mg-wire").count()


def test_a_tip_tells_all_of_a_node(graph: Locator) -> None:
    summit = graph.locator(".mg-box.mg-summit")
    summit.hover()
    expect(graph.locator(".mg-tip")).to_contain_text("in use at the peak")
    expect(graph.locator(".mg-tip")).to_contain_text(summit.get_attribute("data-node") or "-")
