"""A JupyterLab of our own with a Chromium in front of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import nbformat
from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Playwright, Request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120_000
"""Milliseconds for anything to happen: a loaded machine is slow, a test that fails may take its time."""


@dataclasses.dataclass(frozen=True)
class Lab:
    """A running server; notebooks are opened from `folder`."""

    url: str
    folder: pathlib.Path

    def write(self, name: str, cells: Sequence[str]) -> None:
        """A notebook of code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, self.folder / name)


@contextlib.contextmanager
def running_lab(home: pathlib.Path) -> Iterator[Lab]:
    """A server on 127.0.0.1 that reads and writes nothing outside `home`."""
    folder = home / "notebooks"
    folder.mkdir(parents=True)
    _settings(home, "notification", {"fetchNews": "false", "checkForUpdates": False})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", "--IdentityProvider.token=", f"--ServerApp.root_dir={folder}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with (home / "server.log").open("w") as log, _process(command, _environment(home), log) as server:
        _wait_for(f"http://127.0.0.1:{port}/api/status", server, home / "server.log")
        yield Lab(f"http://127.0.0.1:{port}", folder)


@contextlib.contextmanager
def chromium(playwright: Playwright) -> Iterator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    try:
        yield browser
    finally:
        browser.close()


class Desk:
    """One page of JupyterLab, and a record of what it complained of and asked for."""

    def __init__(self, lab: Lab, page: Page) -> None:
        self.lab, self.page = lab, page
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        page.set_default_timeout(PATIENCE)
        self._watches = {"console": self._on_console, "pageerror": self._on_error, "request": self._on_request}
        for event, watch in self._watches.items():
            page.on(event, watch)  # type: ignore[call-overload]

    def stop_watching(self) -> None:
        for event, watch in self._watches.items():
            self.page.remove_listener(event, watch)

    def open(self, name: str) -> None:
        """Opens a notebook on its own, and waits for its kernel."""
        self.page.goto(f"{self.lab.url}/doc/tree/{name}")
        self.page.wait_for_function(
            """() => {
                const kernel = window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel;
                return kernel?.status === "idle";
            }"""
        )

    def start_all(self) -> None:
        """Runs every cell, without waiting."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def run(self, cell: int) -> None:
        """Runs one cell again, and waits until its kernel is done."""
        self.page.evaluate(
            """async (cell) => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = cell;
                notebook.deselectAll();
                await window.jupyterapp.commands.execute("notebook:run-cell");
            }""",
            cell,
        )

    def restart(self) -> None:
        """A new kernel under the open notebook."""
        self.page.evaluate(
            "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart(); }"
        )

    def type_in_new_cell(self, text: str) -> None:
        """Types in a cell below the last, and leaves the cursor there."""
        self.page.evaluate(
            """async () => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = notebook.widgets.length - 1;
                await window.jupyterapp.commands.execute("notebook:insert-cell-below");
            }"""
        )
        self.page.locator(".jp-Cell.jp-mod-active .cm-content").click()
        self.page.keyboard.type(text)

    def evaluate(self, code: str) -> str:
        """What an expression prints in the notebook's kernel."""
        return str(
            self.page.evaluate(
                """async (code) => {
                    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                    let text = "";
                    const future = kernel.requestExecute({ code: `print(${code})`, store_history: false });
                    future.onIOPub = (message) => {
                        if (message.header.msg_type === "stream") text += message.content.text;
                        if (message.header.msg_type === "error") text += message.content.evalue;
                    };
                    await future.done;
                    return text.trimEnd();
                }""",
                code,
            )
        )

    def panel(self, number: int = 0) -> Locator:
        return self.page.locator(".memscope-frame").nth(number)

    def no_subshells(self) -> None:
        """Has widgets talk to the thread that runs cells, as JupyterLab's setting for that does."""
        self.page.evaluate(
            """() => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                kernel.commsOverSubshells = "disabled";
            }"""
        )

    def keep_busy(self, seconds: float) -> None:
        """Runs a cell that takes its time, without waiting."""
        self.page.evaluate(
            """(code) => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                kernel.requestExecute({ code, store_history: false });
            }""",
            f"__import__('time').sleep({seconds})",
        )

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(message.text)

    def _on_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.lab.url, "data:", "blob:")):
            self.elsewhere.append(request.url)


def open_tab(panel: Locator, name: str) -> None:
    panel.get_by_role("tab", name=name).click()


def selected_row(panel: Locator) -> Locator:
    """The row that is marked in the table on show."""
    return panel.locator('tr[aria-selected="true"]').filter(visible=True)


def _environment(home: pathlib.Path) -> dict[str, str]:
    folders = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "RUNTIME", "DATA")}
    return {
        **os.environ,
        **folders,
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "extension")]),
    }


def _settings(home: pathlib.Path, name: str, values: dict[str, Any]) -> None:
    path = home / "settings" / "@jupyterlab" / "apputils-extension" / f"{name}.jupyterlab-settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


@contextlib.contextmanager
def _process(command: Sequence[str], environment: dict[str, str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
