"""One JupyterLab and one Chromium for all browser tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.lab import CHROMIUM, Desk, Lab, chromium, running_lab


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with running_lab(tmp_path_factory.mktemp("lab") / "home") as running:
        yield running


@pytest.fixture(scope="session")
def browser(lab: Lab) -> Iterator[Browser]:
    with sync_playwright() as started, chromium(started) as launched:
        yield launched


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1100, "height": 1150})
    yield opened
    opened.close()


@pytest.fixture
def desk(lab: Lab, page: Page) -> Iterator[Desk]:
    """The page, watched: a test fails where it complains, or asks anybody else for anything."""
    watched = Desk(lab, page)
    yield watched
    watched.stop_watching()
    assert watched.elsewhere == []
    assert watched.complaints == []
