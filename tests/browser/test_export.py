"""A notebook that was run without a page, as a page that is opened without the network."""

from __future__ import annotations

import pathlib

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from playwright.sync_api import Browser, Page, expect

from tests.browser.lab import Desk, Lab
from tests.browser.test_panel import KNN

PANEL = "%memsafe -l 2MiB knn(queries, points)"


def exported(lab: Lab, folder: pathlib.Path) -> pathlib.Path:
    """The page of a notebook that keeps the state of its widgets; the notebook is left in the server's folder."""
    lab.write("exported.ipynb", [KNN, PANEL])
    notebook = nbformat.read(lab.folder / "exported.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, store_widget_state=True).execute()
    assert notebook.metadata.widgets
    nbformat.write(notebook, lab.folder / "exported.ipynb")
    written = folder / "exported.html"
    written.write_text(HTMLExporter().from_notebook_node(notebook)[0])
    return written


def report_is_seen(page: Page) -> None:
    report = page.locator(".memscope")
    expect(report).to_be_visible()
    expect(report).to_contain_text("knn on cpu: peak 9.")
    for picture in report.locator("img").all():
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("async image => { await image.decode(); return image.naturalWidth; }") > 100


def test_an_export_shows_the_report_without_the_network(
    lab: Lab, browser: Browser, page: Page, tmp_path: pathlib.Path
) -> None:
    written = exported(lab, tmp_path)
    context = browser.new_context(offline=True)
    offline = context.new_page()
    offline.goto(written.as_uri(), wait_until="domcontentloaded")
    report_is_seen(offline)
    context.close()
    desk = Desk(lab, page)
    page.goto(f"{lab.url}/doc/tree/exported.ipynb")  # as somebody else who was sent it: not trusted, nothing run
    report_is_seen(page)
    desk.stop_watching()
    assert desk.complaints == []
