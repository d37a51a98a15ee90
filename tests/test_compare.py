"""One function on several targets."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest

import memscope
from memscope.cli import FITS, TOO_BIG, main
from memscope.target import Target, resolve

GPU = importlib.util.find_spec("jax_cuda13_plugin") is not None
needs_gpu_compiler = pytest.mark.skipif(not GPU, reason="XLA's GPU compiler is not installed (extra gpu)")


def product(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.exp(x @ x.T), 1)


X = jax.ShapeDtypeStruct((1000, 8), "float32")
LARGE, SMALL, TINY = (
    Target(name, "cpu", size) for name, size in [("large", 1 << 30), ("small", 1 << 20), ("tiny", 99)]
)


def test_what_fits_and_what_would() -> None:
    made = memscope.compare(product, X, targets=[LARGE, SMALL, TINY])
    large, small, tiny = made
    assert (large.fits, small.fits, tiny.fits) == (True, False, False)
    assert (large.fits_rewritten, small.fits_rewritten, tiny.fits_rewritten) == (True, True, False)
    assert large.plan is None
    assert small.plan is not None
    assert small.lowest_limit_bytes == small.plan.peak_bytes <= small.capacity_bytes < small.peak_bytes
    assert tiny.lowest_limit_bytes > tiny.capacity_bytes
    assert large.slowdown == 1.0
    assert len(made) == 3
    assert made[1] is small


def test_the_table() -> None:
    made = memscope.compare(product, X, targets=[LARGE, SMALL, TINY])
    lines = str(made).splitlines()
    assert lines[0] == "product on 3 targets"
    assert "fits" in lines[2]
    assert "limit='1.00 MiB': rewritten to" in lines[3]
    assert "nothing: " in lines[4]
    assert "estimates" in lines[-1]
    assert made.to_html().count("<tr>") == 4
    assert "<table>" in made._repr_html_()


def test_bad_targets() -> None:
    with pytest.raises(TypeError, match="targets is a list of names"):
        memscope.compare(product, X, targets="cpu")
    with pytest.raises(TypeError, match="targets is a list of names"):
        memscope.compare(product, X, targets=[])
    with pytest.raises(memscope.TargetError, match="unknown target 'h900'"):
        memscope.compare(product, X, targets=["cpu", "h900"])


@needs_gpu_compiler
def test_gpus_from_the_shell(knn_file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = "f32[400000,16] f32[30000,16]"
    argv = ["compare", "knn.py:nearest", "--shapes", shapes, "--targets", "t4,h200"]
    assert main([*argv, "--json", "--html", "out.html"]) == FITS
    t4, h200 = json.loads(capsys.readouterr().out)["targets"]
    assert (t4["target"], t4["fits"], t4["fits_rewritten"]) == ("t4", False, True)
    assert t4["capacity_bytes"] == resolve("t4").capacity_bytes
    assert t4["lowest_limit_bytes"] <= t4["capacity_bytes"] < t4["peak_bytes"]
    assert h200["fits"]
    assert "does not fit" in (knn_file.parent / "out.html").read_text()
    assert main(argv) == FITS
    out = capsys.readouterr().out
    assert "does not fit" in out
    assert "0.75" not in out.splitlines()[0]


@needs_gpu_compiler
def test_what_fits_nowhere(knn_file: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", "knn.py:identity", "--shapes", "f32[4000000000]", "--targets", "t4"]
    assert main(argv) == TOO_BIG
    assert "is the lowest peak" in capsys.readouterr().out
