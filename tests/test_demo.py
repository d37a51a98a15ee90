"""The demo, as a newcomer runs it: a process of its own in an empty folder."""

from __future__ import annotations

import pathlib
import re
import runpy
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

import memscope
from memscope import demo
from memscope.options import UsageError


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "memscope", "demo"], cwd=folder, capture_output=True, text=True, timeout=600
    )
    return folder / "memscope-demo", done


def test_the_demo_succeeds_and_agrees(ran: tuple[pathlib.Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = ran
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "The values agree." in done.stdout
    assert "\033" not in done.stdout  # no colours in a pipe


def test_the_measured_peak_is_a_fraction_of_the_original(
    ran: tuple[pathlib.Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = ran
    found = re.search(r"peak, measured +([\d.]+) (\w+) +([\d.]+) (\w+)", done.stdout)
    assert found is not None
    assert (found[2], found[4]) == ("MiB", "MiB")
    before, after = float(found[1]), float(found[3])
    assert before > 300
    assert after < before / 5


def test_the_files_are_what_they_are_said_to_be(
    ran: tuple[pathlib.Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = ran
    for name in ("knn.py", "knn_safe.py", "report.html"):
        assert f"memscope-demo/{name}" in done.stdout
        assert (folder / name).stat().st_size > 0
    assert "knn.py:" in (folder / "report.html").read_text()
    safe = runpy.run_path(str(folder / "knn_safe.py"))["nearest_safe"]
    written = runpy.run_path(str(folder / "knn.py"))
    queries, points = written["make_args"]()
    _, index = safe(queries, points)
    assert np.asarray(index).shape == (len(queries), 10)
    assert written["accuracy"](index) > 0.9


def test_the_demo_ends_with_a_command_that_works(
    ran: tuple[pathlib.Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = ran
    _, *arguments = next(line.split() for line in done.stdout.splitlines() if "memscope plan " in line)
    again = subprocess.run(
        [sys.executable, "-m", "memscope", *arguments, "--quiet"],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert again.returncode == 0, again.stderr


def test_without_scikit_learn_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'memscope-jax\[demo\]'"):
        demo.run_demo(tmp_path / "memscope-demo")
    assert not (tmp_path / "memscope-demo").exists()


def test_a_folder_named_like_the_package_is_the_users_own() -> None:
    """In a checkout, memscope-demo/ lies beside memscope/: lines in it must be named all the same."""
    path = pathlib.Path(memscope.__file__).parent.with_name("memscope-demo") / "knn.py"
    names: dict[str, Any] = {}
    exec(compile("def double(x):\n    return (x * 2).sort()\n", str(path), "exec"), names)
    profile = memscope.profile(names["double"], jax.ShapeDtypeStruct((1000,), "float32"))
    assert any(buffer.source == "knn.py:2" for buffer in profile.buffers)
