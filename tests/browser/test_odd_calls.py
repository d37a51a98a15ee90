"""The panel of functions that a person might try first, or by mistake."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import PATIENCE, Desk, Lab, open_tab

expect.set_options(timeout=PATIENCE)

LONG = "a_function_with_" + "such_" * 30 + "a_name"
LINES = "\n".join(f"# line {k} of many" for k in range(60))
SETUP = f"""\
import jax, jax.numpy as jnp, numpy as np
%load_ext memscope
from memscope_jupyter.opening import open_panels

def nothing(): pass
def whole(x): return jnp.exp(x[:, None] * x)
def {LONG}(x): return whole(x).sum(1)
{LINES}
def late(x): return jnp.exp(x @ x.T).sum(1)
def deep(x):
    for _ in range(24): x = jnp.tanh(jnp.exp(-x @ x.T) @ x)
    return x.sum()
slow = jax.grad(deep)
x = np.ones(500, np.float32)"""


@pytest.fixture(scope="module")
def notebook(lab: Lab, page: Any) -> None:
    most = ["nothing()", "whole(jax.ShapeDtypeStruct((200_000,), 'float32'))", f"{LONG}(x)", "late(x[:, None])"]
    calls = [*most, "slow(np.ones((500, 8), np.float32))"]
    lab.write("odd.ipynb", [SETUP, *(f"%memsafe {call}" for call in calls)])
    desk = Desk(lab, page)
    desk.open("odd.ipynb")
    desk.run(0)
    desk.stop_watching()


@pytest.fixture
def opened(notebook: None, desk: Desk, request: pytest.FixtureRequest) -> Locator:
    """The panel of one cell."""
    desk.run(request.param)
    frame = desk.page.locator(".jp-Cell").nth(request.param).locator(".memscope-frame")
    expect(frame.locator("[data-drawn]")).to_be_visible()
    return frame


@pytest.mark.parametrize("opened", [1], indirect=True)
def test_a_function_that_takes_nothing(opened: Locator) -> None:
    expect(opened.locator(".ms-header")).to_contain_text("peak 0 B")
    expect(opened.locator(".ms-ends")).to_have_text("lowest possible 0 Bno version takes lesstoday 0 B")
    expect(opened).to_contain_text("No buffer is in use at any step.")
    open_tab(opened, "Graph")
    expect(opened).to_contain_text("XLA runs no instruction here.")
    opened.get_by_role("button", name="Run and check").click()
    expect(opened).to_contain_text("The values agree.")


@pytest.mark.parametrize("opened", [2], indirect=True)
def test_a_function_that_nothing_makes_smaller(opened: Locator) -> None:
    expect(opened.locator(".ms-verdict")).to_have_text("DOES NOT FIT")
    expect(opened.locator(".ms-time")).to_be_empty()
    expect(opened.get_by_role("status")).to_contain_text("No limit helps, as cpu holds")
    open_tab(opened, "Rewrite")
    expect(opened).to_contain_text("No version of whole takes less than it does as it is written.")
    expect(opened).not_to_contain_text("fits this limit")


@pytest.mark.parametrize("opened", [3], indirect=True)
def test_a_name_that_is_longer_than_the_panel_is_wide(opened: Locator) -> None:
    assert opened.evaluate("frame => frame.scrollWidth <= frame.clientWidth")
    opened.get_by_role("button", name="Apply as").click()
    expect(opened.get_by_role("status")).to_contain_text(f"Call {LONG}_safe as you call {LONG}.")
    assert opened.evaluate("frame => frame.scrollWidth <= frame.clientWidth")


IN_VIEW = """line => {
    const [own, frame] = [line, line.parentElement].map((element) => element.getBoundingClientRect());
    return own.top >= frame.top && own.bottom <= frame.bottom;
}"""


@pytest.mark.parametrize("opened", [4], indirect=True)
def test_the_marked_line_is_in_view(opened: Locator) -> None:
    marked = opened.locator(".ms-line[aria-current]")
    expect(marked).to_contain_text("def late(x)")
    assert marked.evaluate(IN_VIEW)


@pytest.mark.parametrize("opened", [5], indirect=True)
def test_cancelled_planned_again_and_closed(opened: Locator, desk: Desk) -> None:
    # seconds of planning for each limit: a click on a busy machine comes while there is something to cancel
    typed = opened.get_by_role("textbox", name="Memory limit in bytes")
    for limit in ("50%", "60%"):
        typed.fill(limit)
        typed.press("Enter")
        opened.get_by_role("button", name="Cancel").click()
        expect(opened.get_by_role("status")).to_contain_text("Cancelled.")
        expect(opened.get_by_role("button", name="Cancel")).to_be_disabled()
    typed.fill("70%")
    typed.press("Enter")
    expect(opened.locator(".ms-how")).to_have_text("✓ confirmed by XLA")
    expect(opened.locator(".ms-verdict")).to_have_text("FITS")
    opened.get_by_role("button", name="Close").click()
    cell = desk.page.locator(".jp-Cell").nth(5)
    expect(cell).to_contain_text("The panel for slow is closed. Its last report:")
    expect(cell.locator(".memscope")).to_be_visible()
    desk.run(5)
    expect(cell.locator("[data-drawn]")).to_be_visible()
    expect(cell.locator(".memscope")).to_be_hidden()


@pytest.mark.parametrize("opened", [4], indirect=True)
def test_a_panel_whose_kernel_has_ended(opened: Locator, desk: Desk) -> None:
    desk.restart()
    opened.get_by_role("button", name="Apply as late_safe").click()
    expect(opened.get_by_role("status")).to_contain_text("has ended: run the cell again.")
    opened.get_by_role("button", name="Close").click()
    expect(opened).to_be_hidden()
    expect(desk.page.locator(".jp-Cell").nth(4).locator(".memscope")).to_be_visible()
    assert set(desk.complaints) == {"Cannot send"}  # ipywidgets' own buttons still try
    desk.complaints.clear()
