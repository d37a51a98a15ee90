"""What the README tells a newcomer to type works, at a hundredth of its size."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shlex

import numpy as np
import pytest

from memscope.cli import main

GPU_COMPILER = importlib.util.find_spec("jax_cuda13_plugin") is not None
README = (pathlib.Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_examples_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, then, in_order, elsewhere = (
        text.replace("4_000", "400").replace("100_000", "10_000").replace("200MiB", "8MiB") for text in blocks("python")
    )
    names: dict[str, object] = {}
    exec(first, names)
    assert "float32[400,10000]" in capsys.readouterr().out
    rng = np.random.default_rng(0)
    names["queries"], names["points"] = (rng.normal(size=(n, 32)).astype(np.float32) for n in (400, 10_000))
    exec(then, names)
    exec(in_order, names)
    assert (tmp_path / "nearest_safe.py").exists()
    if GPU_COMPILER:
        exec(elsewhere, names)
        assert (tmp_path / "nearest.jaxexport").exists()
        assert "nearest on 3 targets" in capsys.readouterr().out


def test_the_shell_examples_run(knn_file: pathlib.Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("memscope ")]
    assert len(commands) == 4
    for command in commands:
        small = command.replace("4000,32", "400,16").replace("400000,32", "400,16").replace("100000,32", "3000,16")
        words = shlex.split(small.replace("200MiB", "8MiB"))[1:]
        if words[0] != "compare":
            assert main([*words, "--quiet"]) == 0
        elif GPU_COMPILER:
            assert main(words) == 0


def test_it_names_no_machine() -> None:
    assert not re.search(r"/work/|/root/|/home/|/tmp/|localhost|https?://", README)
