"""The magics in a real InteractiveShell."""

from __future__ import annotations

import pathlib
import re
import textwrap
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from IPython.testing.globalipapp import start_ipython
from IPython.utils.capture import CapturedIO, capture_output

from memscope_jupyter.magics import split_options

SETUP = """
import jax, jax.numpy as jnp, numpy as np

def knn(q, x, k=5):
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, k)

class Searcher:
    def find(self, q, x, *, k=3):
        return knn(q, x, k)

rng = np.random.default_rng(0)
q, x = (rng.normal(size=(n, 16)).astype('float32') for n in (1000, 3000))
searcher = Searcher()
"""


@pytest.fixture(scope="module")
def the_shell() -> InteractiveShell:
    shell = start_ipython() or InteractiveShell.instance()
    shell.colors = "nocolor"
    assert shell.run_cell("%load_ext memscope").success
    return shell


@pytest.fixture
def shell(the_shell: InteractiveShell, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    """The shell with nothing in its namespace but SETUP."""
    monkeypatch.chdir(tmp_path)
    the_shell.reset(new_session=True)
    assert the_shell.run_cell(SETUP).success
    return the_shell


class Ran:
    """What a cell did and showed."""

    def __init__(self, result: ExecutionResult, shown: CapturedIO) -> None:
        self.success, self.value = result.success, result.result
        self.error = result.error_before_exec or result.error_in_exec
        self.text = shown.stdout + shown.stderr
        self.outputs = [output.data for output in shown.outputs]


@pytest.fixture
def run(shell: InteractiveShell) -> Callable[[str], Ran]:
    def run_cell(text: str) -> Ran:
        with capture_output() as shown:
            result = shell.run_cell(textwrap.dedent(text), store_history=True)
        return Ran(result, shown)

    return run_cell


Run = Callable[[str], Ran]


def test_a_line_without_limit_shows_the_account(run: Run, shell: InteractiveShell) -> None:
    ran = run("%memsafe knn(q, x)")
    assert ran.success
    assert ran.value is None
    (data,) = ran.outputs
    assert "float32[1000,3000]" in data["text/plain"]
    assert "float32[1000,3000]" in data["text/html"]
    assert "knn_safe" not in shell.user_ns


def test_a_line_with_a_limit_binds_a_version_that_fits(run: Run, shell: InteractiveShell) -> None:
    ran = run("%memsafe --limit 25% knn(q, x)")
    assert ran.success
    assert ran.value is None
    last = ran.outputs[-1]
    assert "knn_safe is the version that fits" in last["text/plain"]
    assert "knn_safe" in last["text/html"]
    both = run("knn_safe(q, x), knn(q, x)")
    (values, index), (want_values, want_index) = both.value
    np.testing.assert_allclose(values, want_values, rtol=2e-3)
    np.testing.assert_array_equal(index, want_index)


def test_quiet_is_one_line(run: Run) -> None:
    ran = run("%memsafe -q -l 25% knn(q, x)")
    assert re.fullmatch(r"knn on cpu: peak .* -> .*, fits 25%: knn_safe\n", ran.text)
    assert ran.outputs == []
    assert re.fullmatch(r"knn on cpu: peak [^\n]*\n", run("%memsafe -q knn(q, x)").text)


def test_run_leaves_the_value(run: Run) -> None:
    ran = run("%memsafe -q -r -l 25% knn(q, x)")
    values, index = ran.value
    assert index.shape == (1000, 5)
    assert run("v, i = _; float(v[0, 0])").value == float(values[0, 0])
    assert run("found = %memsafe -q -r -l 25% knn(q, x)").success
    assert run("found[1].shape").value == (1000, 5)


def test_name_and_export(run: Run, shell: InteractiveShell) -> None:
    assert run("%memsafe -q -l 25% --name small --export small.py knn(q, x)").success
    assert "small" in shell.user_ns
    assert "knn_safe" not in shell.user_ns
    assert "def knn_safe(" in pathlib.Path("small.py").read_text()


@pytest.mark.parametrize(
    "call",
    [
        "knn(q, x, 3)",
        "knn(q, x=x, k=3)",
        "knn(*(q, x), **{'k': 3})",
        "searcher.find(q, x)",
        "searcher.find(q, x, k=3)",
        "jax.jit(knn, static_argnames='k')(q, x, k=3)",
        "(lambda q, x: knn(q, x, 3))(q, x)",
        "knn(q, jnp.concatenate([y for y in (x, x)]), 3)",
        "knn(jax.ShapeDtypeStruct((1000, 16), 'float32'), x)",
        'knn (q,  x)  # "a comment" with \'quotes',
        'knn(q, {"a": x}["a"])',
    ],
)
def test_any_call_will_do(run: Run, call: str) -> None:
    ran = run(f"%memsafe -q -l 30% --name safe {call}")
    assert ran.success, ran.text
    assert "fits 30%: safe" in ran.text


def test_static_arguments_are_given_again(run: Run) -> None:
    assert run("%memsafe -q -l 25% knn(q, x, k=3)").success
    assert run("knn_safe(q, x, k=3)[1].shape").value == (1000, 3)


def test_values_may_come_from_the_users_variables(run: Run) -> None:
    assert run("room = '25%'").success
    assert "fits 25%" in run("%memsafe -q -l $room knn(q, x)").text


def test_the_call_itself_is_not_run(run: Run) -> None:
    ran = run(
        """
        ran = []
        def f(a):
            ran.append(type(a).__name__)
            return a + 1
        """
    )
    assert ran.success
    assert run("%memsafe -q f(q)").success
    assert "ndarray" not in run("ran").value
    assert "ArrayImpl" not in run("ran").value


def test_a_cell_runs_its_statements_and_debugs_its_last_call(run: Run, shell: InteractiveShell) -> None:
    ran = run(
        """\
        %%memsafe -q -l 25%
        half = x[:1500]
        def closest(q, x):
            return knn(q, x, 1)
        closest(q, half)
        """
    )
    assert ran.success, ran.text
    assert "closest_safe" in ran.text
    assert shell.user_ns["half"].shape == (1500, 16)
    assert run("closest_safe(q, half)[0].shape").value == (1000, 1)


def test_a_cell_may_hold_magics_and_end_in_a_semicolon(run: Run) -> None:
    ran = run(
        """\
        %%memsafe -q
        %time t = 3
        knn(q, x, t);
        """
    )
    assert ran.success, ran.text
    assert "Wall time" in ran.text
    assert "knn on cpu" in ran.text


def test_a_cell_names_its_own_lines(run: Run) -> None:
    ran = run(
        """\
        %%memsafe
        def far(q, x):
            d = jnp.abs(q[:, None] - x[None]).sum(-1)

            return jnp.cumsum(d, 1)[:, -3:]
        far(q, x)
        """
    )
    assert ran.success, ran.text
    assert re.search(r"\S+:3\b", ran.outputs[-1]["text/plain"])  # as the cell is numbered, its magic being line 1


def test_a_cell_that_raises_shows_the_users_own_traceback(run: Run, shell: InteractiveShell) -> None:
    ran = run(
        """\
        %%memsafe -l 25%
        before = 1
        1 / 0
        knn(q, x)
        """
    )
    assert isinstance(ran.error, ZeroDivisionError)
    assert "----> 3 1 / 0" in ran.text
    assert "memscope_jupyter" not in ran.text
    assert "run_cell_magic" not in ran.text
    assert shell.user_ns["before"] == 1
    assert "knn_safe" not in shell.user_ns
    assert ran.outputs == []


def test_a_function_that_raises_while_traced_shows_the_users_own_traceback(run: Run, shell: InteractiveShell) -> None:
    ran = run(
        """\
        %%memsafe -l 25%
        before = 2
        def fails(q):
            if q[0, 0] > 0:
                return q
        fails(q)
        """
    )
    assert type(ran.error).__name__ == "TracerBoolConversionError"
    assert "----> 4     if q[0, 0] > 0:" in ran.text
    assert "memscope_jupyter" not in ran.text
    assert "/memscope/" not in ran.text
    assert shell.user_ns["before"] == 2
    assert "fails_safe" not in shell.user_ns


def test_a_call_whose_arguments_raise(run: Run) -> None:
    ran = run("%memsafe knn(q, undefined)")
    assert isinstance(ran.error, NameError)
    assert "knn(q, undefined)" in ran.text
    assert "memscope_jupyter" not in ran.text


def test_a_syntax_error_runs_nothing(run: Run, shell: InteractiveShell) -> None:
    ran = run("%%memsafe\nbefore = 3\nknn(q, x\n")
    assert isinstance(ran.error, SyntaxError)
    assert ran.error.lineno == 3
    assert "before" not in shell.user_ns


def test_a_limit_that_can_not_be_met_is_text(run: Run, shell: InteractiveShell) -> None:
    ran = run("%memsafe --limit 300KiB knn(q, x)")
    assert not ran.success
    assert type(ran.error).__name__ == "LimitError"
    assert "300 KiB" in ran.text
    assert "Traceback" not in ran.text
    assert "memscope_jupyter" not in ran.text
    assert "knn_safe" not in shell.user_ns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("%memsafe", "nothing to debug"),
        ("%memsafe -q", "nothing to debug"),
        ("%memsafe q", "the last expression here is 'q', not a call"),
        ("%memsafe y = knn(q, x)", "the assignment 'y = knn(q, x)', not a call"),
        ("%memsafe --wrong knn(q, x)", "unrecognized arguments: --wrong"),
        ("%memsafe --limit", "expected one argument"),
        ("%memsafe --limit lots knn(q, x)", "'lots' is not a size"),
        ("%memsafe --limit -3MiB knn(q, x)", "expected one argument"),
        ("%memsafe --target h900 knn(q, x)", "unknown target 'h900'"),
        ("%memsafe --name 3d knn(q, x)", "is not a Python name"),
        ("%memsafe --export out.txt knn(q, x)", "end the name in .py"),
        ('%memsafe --limit "1 GiB knn(q, x)', "close the quote"),
        ("%memsafe knn(q)", "missing a required argument: 'x'"),
        ("%memsafe --name class knn(q, x)", "is not a Python name"),
        ("%memsafe knn(q, [object()])", "which is no JAX type"),
        ("%memsafe knn(q, x.astype('U1'))", "x is a NumPy array of dtype <U1, which is no JAX type"),
        ("%memsafe np.sum(x)", "call it in a function of your own, and jax.numpy's in place of NumPy's"),
        ("%memsafe -r -l 30% knn(jax.ShapeDtypeStruct((1000, 16), 'float32'), x)", "--run needs values"),
        ("%memsafe -r -l 30% --target t4 knn(q, x)", "--run runs nothing on a GPU that is not here"),
        ("%memsafe jax.jit(knn)(q, x, limit=3)", "functools.partial(knn, limit=...)"),
        ("%%memsafe\n# before = 5\n", "the last expression here is missing"),
        ("%%memsafe\ny = knn(q, x)\n", "the assignment 'y = knn(q, x)', not a call"),
        ("%%memsafe\nfor i in range(3):\n    knn(q, x)\n", "not a call"),
        ("%%memsafe knn(q, x)\nknn(q, x)\n", "the last line of the cell"),
        ("%%memsafe\nbefore = 4\nawait knn(q, x)\n", "not a call"),
    ],
)
def test_bad_usage_is_one_sentence(run: Run, shell: InteractiveShell, text: str, said: str) -> None:
    ran = run(text)
    assert type(ran.error).__name__ == "UsageError"
    assert said in ran.text
    assert ran.text.strip().count("\n") == 0
    assert ran.outputs == []
    assert "before" not in shell.user_ns


def test_help(run: Run, shell: InteractiveShell) -> None:
    assert "--limit SIZE" in run("%memsafe --help").text
    documented = shell.magics_manager.magics["line"]["memsafe"].__doc__
    assert "--limit SIZE" in documented
    assert "%%memsafe" in documented


def test_completion(shell: InteractiveShell) -> None:
    def offered(text: str) -> list[str]:
        with provisionalcompleter(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [c.text for c in shell.Completer.completions(text, len(text))]

    assert offered("%memsafe --li") == ["--limit"]
    assert offered("%%memsafe -q --ex") == ["--export"]
    assert offered("%memsafe --target c") == ["cpu"]
    assert "--limit" not in offered("%time --li")


def test_the_extension_can_be_reloaded(run: Run, shell: InteractiveShell) -> None:
    matchers = len(shell.Completer.custom_matchers)
    assert run("%reload_ext memscope").success
    assert run("%load_ext memscope_jupyter").success
    assert len(shell.Completer.custom_matchers) == matchers
    assert run("%unload_ext memscope_jupyter").success
    assert len(shell.Completer.custom_matchers) == matchers - 1
    assert not run("%memsafe knn(q, x)").success
    assert run("%load_ext memscope_jupyter").success
    assert run("%memsafe -q knn(q, x)").success


@pytest.mark.parametrize(
    ("line", "tokens", "rest"),
    [
        ("f(x)", [], "f(x)"),
        ("-q f(x)", ["-q"], "f(x)"),
        ("--limit 1GiB -q f('a', \"b\\n\")", ["--limit", "1GiB", "-q"], "f('a', \"b\\n\")"),
        ("--limit=1GiB f(x)", ["--limit=1GiB"], "f(x)"),
        ('--limit "1 GiB" f(x)', ["--limit", "1 GiB"], "f(x)"),
        ("--limit 1.5 GiB f(x)", ["--limit", "1.5 GiB"], "f(x)"),
        ("--limit 1 b(x)", ["--limit", "1"], "b(x)"),
        ("--limit 50 MiB", ["--limit", "50 MiB"], ""),
        ("-q -- f(x)", ["-q"], "f(x)"),
        ("--limit", ["--limit"], ""),
        ("  -q   f( x )  ", ["-q"], "f( x )"),
    ],
)
def test_the_rest_of_a_line_is_left_as_it_was(line: str, tokens: list[str], rest: str) -> None:
    assert split_options(line) == (tokens, rest)
