"""The command, mostly in this process; what a shell sees is tried in processes of its own."""

from __future__ import annotations

import functools
import json
import pathlib
import runpy
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from memscope import Check
from memscope.cli import main
from memscope.sizes import format_bytes

pytestmark = pytest.mark.usefixtures("knn_file")

SHAPES = "f32[1000,16] f32[3000,16]"


def memscope(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "memscope", *argv], capture_output=True, text=True, timeout=300)


def test_profile_prints_the_account(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES]) == 0
    out, err = capsys.readouterr()
    assert "knn.py:9" in out  # the line that builds the distances
    assert "float32[1000,3000]" in out
    assert err == ""


def test_profile_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES, "--quiet"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("nearest on cpu: peak ")
    assert out.count("\n") == 1


def test_profile_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    assert told["argument_bytes"] == (1000 * 16 + 3000 * 16) * 4
    assert told["peak_bytes"] >= told["argument_bytes"] + told["output_bytes"]


def test_profile_as_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES, "--html", "report.html"]) == 0
    assert "<html" in pathlib.Path("report.html").read_text().lower()
    assert "wrote report.html" in capsys.readouterr().err


def test_profile_over_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES, "--limit", "1MiB", "--quiet"]) == 3
    assert "memscope plan" in capsys.readouterr().err


def test_profile_that_fits_in_one_build_and_may_not_in_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["profile", "knn.py:nearest", "--shapes", SHAPES, "--json"]
    assert main(argv) == 0
    told = json.loads(capsys.readouterr().out)
    exact, plain = told["peak_bytes"], told["plain_bound_bytes"]
    assert exact < plain
    assert main([*argv, "--limit", str(exact - 1)]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["fits"] is False
    assert f"needs {format_bytes(exact)}, over the limit" in err
    assert main([*argv, "--limit", str(exact)]) == 0
    assert f"A plain jax.jit may take up to {format_bytes(plain)}" in capsys.readouterr().err
    assert main([*argv, "--limit", str(plain)]) == 0
    assert "jax.jit" not in capsys.readouterr().err


def test_arguments_from_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--args", "knn.py:make_args", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["argument_bytes"] == (1000 * 16 + 3000 * 16) * 4


def test_arguments_from_a_traceable_function_are_never_made(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:nearest", "--args", "knn.py:huge_args", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["argument_bytes"] == (10_000_000 * 16 + 40 * 16) * 4


def test_64_bit_shapes_turn_x64_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "knn.py:identity", "--shapes", "f64[1000]", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["argument_bytes"] == 8000


def test_schedule_shows_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["schedule", "knn.py:nearest", "--shapes", SHAPES, "--seconds", "0.5"]
    assert main([*argv, "--html", "order.html"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("nearest on cpu: peak ")
    assert "wrote order.html" in err
    assert "<html" in pathlib.Path("order.html").read_text()
    assert main([*argv, "--quiet"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lower_bound_bytes"] <= told["peak_bytes"] <= told["default_peak_bytes"]
    assert told["order"]


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan"])
def test_seconds_that_are_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["schedule", "knn.py:nearest", "--shapes", SHAPES, "--seconds", seconds])
    assert stopped.value.code == 2
    assert "number of seconds" in capsys.readouterr().err


def test_plan_explains_and_exports(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "25%", "--export", "small.py"])
    out, err = capsys.readouterr()
    assert code == 0
    assert "knn.py:9" in out
    assert err.startswith("memscope: ")  # it says what it is doing while it does
    assert err.endswith("wrote small.py\n")
    safe = runpy.run_path("small.py")["nearest_safe"]
    rng = np.random.default_rng(0)
    q, x = (rng.normal(size=(n, 16)).astype(np.float32) for n in (1000, 3000))
    values, index = safe(q, x)
    want_values, want_index = runpy.run_path("knn.py")["nearest"](q, x)
    np.testing.assert_allclose(values, want_values, rtol=2e-3)
    np.testing.assert_array_equal(index, want_index)
    assert values.dtype == jnp.float32


def test_a_print_is_kept_in_source_and_refused_in_an_artifact(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "knn.py:printing", "--shapes", "f32[1000]", "--quiet", "--export"]
    assert main([*argv, "printing.jaxexport"]) == 2
    _, err = capsys.readouterr()
    assert err.startswith("memscope: printing can't be written as .jaxexport: it calls back into Python")
    assert err.count("\n") == 1
    assert not pathlib.Path("printing.jaxexport").exists()
    assert main([*argv, "printing.py"]) == 0
    assert "the first is" in pathlib.Path("printing.py").read_text()
    assert main([*argv, "printing.py"]) == 0  # what memscope wrote it may write again


def test_plan_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "25%", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("nearest on cpu: peak ")
    assert "fits 25%" in out
    assert (out.count("\n"), err) == (1, "")


def test_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "25%", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    assert told["peak_bytes"] <= told["original_peak_bytes"] * 0.25
    assert {"size", "chunk", "trips"} <= set(told["loops"][0])


def test_plan_runs_on_real_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["plan", "knn.py:nearest", "--args", "knn.py:make_args", "--limit", "25%", "--run", "--quiet"])
    assert code == 0
    assert "values agree" in capsys.readouterr().out


def test_a_whole_number_among_the_arguments_stays_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["plan", "knn.py:nearest_k", "--args", "knn.py:make_args_and_k", "--limit", "25%", "--quiet"]
    assert main(argv) == 0
    assert main([*argv, "--run"]) == 0
    assert "values agree" in capsys.readouterr().out


def test_plan_that_fits_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "knn.py:nearest", "--shapes", SHAPES, "--quiet"]) == 0
    assert "unchanged" in capsys.readouterr().out


def test_plan_that_can_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "200KiB"]) == 3
    out, err = capsys.readouterr()
    assert "KiB" in err  # the floor
    assert "Traceback" not in err
    assert out == ""


def test_plan_that_can_not_fit_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "200KiB", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is False
    assert told["floor_bytes"] > 200 * 1024
    assert {"bytes", "source", "reason"} <= set(told["blockers"][0])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["profile", "gone.py:f", "--shapes", "f32[2]"], "there is no file gone.py"),
        (["profile", "knn.py:gone", "--shapes", "f32[2]"], "there is no gone in knn.py"),
        (["profile", "knn.py:pi", "--shapes", "f32[2]"], "not a function"),
        (["profile", "knn.py:nearest", "--shapes", "f32[2"], "is not a shape"),
        (["profile", "knn.py:nearest", "--shapes", "f33[2]"], "unknown dtype 'f33'"),
        (["profile", "knn.py:nearest", "--shapes", "f32[2,2]"], "missing a required argument: 'x'"),
        (["profile", "knn.py:nearest", "--args", "knn.py:listed_args"], "return the tuple of arguments"),
        (["profile", "knn.py:nearest", "--args", "knn.py:gone"], "there is no gone in knn.py"),
        (["profile", "knn.py:nearest", "--shapes", SHAPES, "--target", "h900"], "unknown target 'h900'"),
        (["profile", "knn.py:nearest", "--shapes", SHAPES, "--html", "no/r.html"], "there is no folder no"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "lots"], "'lots' is not a size"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--export", "knn.py"], "memscope did not write it"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "0"], "above zero"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit=-1MiB"], "is not a size"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--export", "out.txt"], "end the name in .py"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--run"], "--run needs values"),
    ],
)
def test_bad_usage_is_one_sentence(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.startswith("memscope: ")
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "memscope --help"),
        (["profil"], "invalid choice"),
        (["profile"], "FILE.py:FUNCTION"),
        (["profile", "knn.py:nearest"], "--shapes --args"),
        (["profile", "knn.py:nearest", "--shapes", SHAPES, "--args", "knn.py:make_args"], "not allowed with"),
        (["plan", "knn.py:nearest", "--shapes", SHAPES, "--limit"], "expected one argument"),
    ],
)
def test_a_bad_command_line_is_one_sentence(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert said in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", ["profile", "plan"])
def test_a_function_that_raises_shows_the_users_own_traceback(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "knn.py:unfinished", "--shapes", "f32[2]"]) == 1
    out, err = capsys.readouterr()
    assert "ZeroDivisionError: division by zero" in err
    assert "return y @ (1 / 0)" in err
    assert "memscope/" not in err
    assert out == ""


def test_a_file_that_raises_shows_the_users_own_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("broken.py").write_text("import jax\n\njax.no_such_thing\n")
    assert main(["profile", "broken.py:f", "--shapes", "f32[2]"]) == 1
    err = capsys.readouterr().err
    assert "jax.no_such_thing" in err
    assert "memscope/" not in err


def test_a_failure_of_memscope_itself_is_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memscope.cli._load_call", functools.partial(np.reshape, shape=(7,)))
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES]) == 1
    assert "in _profile" in capsys.readouterr().err


def test_an_interrupt_leaves_no_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("memscope.load.load_function", interrupted)
    assert main(["profile", "knn.py:nearest", "--shapes", SHAPES]) == 130
    assert capsys.readouterr().err == "memscope: interrupted\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    command = [sys.executable, "-m", "memscope", "profile", "knn.py:nearest", "--shapes", SHAPES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 141


def test_values_that_differ_fail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Check(False, 1.0, 0.5, None, None, None, "the result is off by half.")
    monkeypatch.setattr("memscope.Plan.check", lambda *_: wrong)
    code = main(["plan", "knn.py:nearest", "--args", "knn.py:make_args", "--limit", "25%", "--run", "--quiet"])
    out, err = capsys.readouterr()
    assert code == 1
    assert "did not pass its check, so no file is written: the result is off by half." in err
    assert "agree" not in out


def test_help_is_short_and_has_examples() -> None:
    shown = memscope("--help")
    assert shown.returncode == 0
    assert "examples:" in shown.stdout
    assert "exit codes:" in shown.stdout
    assert len(shown.stdout.splitlines()) < 40


def test_a_shell_sees_the_exit_code() -> None:
    assert memscope("plan", "knn.py:nearest", "--shapes", SHAPES, "--limit", "200KiB").returncode == 3
    refused = memscope("plan", "knn.py:nearest", "--shapes", "x")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
