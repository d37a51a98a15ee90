"""Each notebook runs from top to bottom in a real kernel."""

from __future__ import annotations

import copy
import dataclasses
import html
import pathlib
import re
from collections.abc import Iterator

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode

WIDGET = "application/vnd.jupyter.widget-view+json"
NOTEBOOKS = sorted((pathlib.Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))


@pytest.fixture(autouse=True, scope="module")
def own_jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody's own configuration, history or connection files."""
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CONFIG", "RUNTIME", "DATA"):
            patch.setenv(f"JUPYTER_{name}_DIR", str(folder / name.lower()))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield


def execute(notebook: NotebookNode, folder: pathlib.Path, allow_errors: bool = False) -> NotebookNode:
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        allow_errors=allow_errors,
    )
    return client.execute()


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp(request.param.stem)
    return Executed(request.param.stem, folder, execute(nbformat.read(request.param, as_version=4), folder))


@dataclasses.dataclass(frozen=True)
class Executed:
    """A notebook that ran, and the folder it ran in."""

    name: str
    folder: pathlib.Path
    notebook: NotebookNode

    @property
    def outputs(self) -> list[NotebookNode]:
        return [output for cell in self.notebook.cells for output in cell.get("outputs", [])]

    @property
    def texts(self) -> list[str]:
        return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in self.outputs]


def test_a_notebook_runs_without_a_complaint(executed: Executed) -> None:
    for output in executed.outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.text
        assert "data" not in output or "text/plain" in output.data


def test_the_quickstart_says_what_it_promises(executed: Executed) -> None:
    if executed.name != "quickstart":
        pytest.skip("another notebook")
    assert any("float32[4000,100000]" in text for text in executed.texts)
    assert any("knn_safe is the version that fits" in text for text in executed.texts)
    assert any("def knn_safe(" in text for text in executed.texts)
    assert (executed.folder / "knn_safe.py").exists()
    assert sum(WIDGET in output.get("data", {}) for output in executed.outputs) == 2


@pytest.mark.parametrize("with_widgets", [True, False], ids=["widgets stored", "without widgets"])
def test_what_a_panel_shows_stands_in_the_notebook_too(executed: Executed, with_widgets: bool) -> None:
    """An exporter that finds a widget's state writes no other form of it; GitHub knows no widgets."""
    notebook = copy.deepcopy(executed.notebook)
    panels = [k for k, output in enumerate(executed.outputs) if WIDGET in output.get("data", {})]
    assert not panels or "widgets" in notebook.metadata
    if not with_widgets:
        notebook.metadata.pop("widgets", None)
    page, _ = HTMLExporter().from_notebook_node(notebook)
    for panel in panels:
        report = executed.outputs[panel + 1].data
        chart = re.search(r'src="(data:image[^"]*)"', report["text/html"])
        assert chart is not None
        assert chart[1] in page
        assert html.escape(report["text/plain"].split("\n")[0], quote=False) in page


PROMISES = {
    "knn": [
        r"float32\[797,25000\]",
        r"\d MiB   about \d+\.\d+x the time",
        r"loop of \S+ chunks: 797 steps",
        r"leaves       int32\[797,5\]  written chunk by chunk",
        r"values agree, measured peak",
        r"9\d\.\d% of the digits are told apart",
    ],
    "sgpr": [
        r"bound on cpu: peak \d",
        r"float32\[100,40000\]  triangular_solve",
        r"(?s)ascent on cpu: fits in 25.0 MiB.*loop of.*loop of",
        r"leaves       float32\[100,100\]  summed up",
        r"ascent_safe is the version that fits",
        r"gradient in inducing: largest difference \d",
        r"bound per data point: .* after eight steps",
    ],
    "attention": [
        r"largest at the peak: 68.7 MiB  float32\[8,1500,1500\]  dot_general",
        r"attend on cpu: fits in 20.0 MiB",
        r"attend_safe is the version that fits",
        r"slopes on cpu: fits in 30.0 MiB",
        r"(?s)slopes on cpu.*  summed up.*  summed up.*leaves       float32\[1500,8,32\]  written chunk by chunk",
        r"gradient in v: largest difference \d",
    ],
    "training": [
        r"largest at the peak: 18.3 MiB  float32\[12000,400\]",
        r"train on cpu: fits in 40.0 MiB",
        r"loop of \d+ chunks: 12,000 steps",
        r"leaves       float32\[400,64\]  summed up",
        r"train_safe is the version that fits",
        r"step 10: loss",
    ],
}


@pytest.mark.parametrize("name", PROMISES)
def test_the_others_say_what_they_promise(executed: Executed, name: str) -> None:
    if executed.name != name:
        pytest.skip("another notebook")
    for promise in PROMISES[name]:
        assert any(re.search(promise, text) for text in executed.texts), promise
    assert any("text/html" in output.get("data", {}) for output in executed.outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: pathlib.Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_a_cell_that_raises_fails_in_a_kernel_as_any_other(tmp_path: pathlib.Path) -> None:
    cells = [
        "%load_ext memscope",
        "%%memsafe\nbefore = 1\n1 / 0\nprint(before)",
        "print(before)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    done = execute(notebook, tmp_path, allow_errors=True)
    (error,) = done.cells[1].outputs
    assert error.ename == "ZeroDivisionError"
    assert "memscope_jupyter" not in "".join(error.traceback)
    (printed,) = done.cells[2].outputs
    assert printed.text == "1\n"


SMALL = """\
import jax.numpy as jnp
from memscope_jupyter.opening import open_panels
%load_ext memscope

def gram(x):
    return jnp.exp(x @ x.T).sum(1)

x = jnp.ones((500, 4))"""


WATCH = """\
%memsafe -l 40% gram(x)
import time

panel, = open_panels.values()
time.sleep(2)
print(panel.state.source is None)
panel._session.go_on()
until = time.monotonic() + 100
while panel.state.source is None and time.monotonic() < until:
    time.sleep(0.05)
print(panel.state.source[:3])"""


def test_what_can_wait_waits_for_cells(tmp_path: pathlib.Path) -> None:
    """The source is made in spare time, of which there is none before the cell ends."""
    cells = [SMALL, WATCH]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    done = execute(notebook, tmp_path)
    *_, printed = done.cells[1].outputs
    assert printed.text == 'True\n"""\n'


def test_a_cell_may_open_several_panels(tmp_path: pathlib.Path) -> None:
    changed = "print([panel.state.plan.changed for panel in open_panels.values()])"
    several = f"%memsafe gram(x)\n%memsafe -l 40% gram(x)\n{changed}"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (SMALL, several)])
    *outputs, printed = execute(notebook, tmp_path).cells[1].outputs
    assert [WIDGET in output.data for output in outputs] == [True, False, True, False]
    assert printed.text == "[False, True]\n"


def test_the_options_in_a_kernel(tmp_path: pathlib.Path) -> None:
    cells = [
        SMALL,
        "%memsafe -r -l 40% --name small --export small.py gram(x)",
        "print(_.shape == (500,), small is not None, open_panels.popitem()[1].state.plan.fits)",
        "%memsafe -q gram(x)",
        "%memsafe -l 1KiB gram(x)",
        "print('gram_safe' in globals())",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    done = execute(notebook, tmp_path, allow_errors=True)
    outputs = [cell.outputs for cell in done.cells]
    assert [output.output_type for output in outputs[1]] == ["display_data", "display_data", "execute_result"]
    assert "small is the version that fits" in outputs[1][1].data["text/plain"]
    assert outputs[2][0].text == "True True True\n"
    assert "def gram_safe(" in (tmp_path / "small.py").read_text()
    assert outputs[3][0].text.startswith("gram on cpu: peak")
    panel, report, error = outputs[4]
    assert WIDGET in panel.data
    assert "gram can't run in 1.00 KiB" in report.data["text/plain"]
    assert error.ename == "LimitError"
    assert error.traceback == [error.evalue]
    assert outputs[5][0].text == "False\n"
