"""What every test runs under: this checkout, JAX on the CPU, JAX's settings as they were."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Before JAX starts, here and in the processes that tests start (kernels, commands, measurements).
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT), str(ROOT / "extension"), *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.fixture(autouse=True)
def x64_as_it_was() -> Iterator[None]:
    """A test that turns 64-bit types on leaves no trace."""
    import jax

    before = jax.config.read("jax_enable_x64")
    yield
    jax.config.update("jax_enable_x64", before)


KNN = '''\
"""Nearest neighbours, as a person would write them."""

import jax
import jax.numpy as jnp
import numpy as np


def nearest(q, x):
    d = jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)
    return jax.lax.top_k(-d, 5)


def make_args():
    return np.ones((1000, 16), np.float32), np.ones((3000, 16), np.float32)


def nearest_k(q, x, k):
    return jax.lax.top_k(-(jnp.sum(q**2, 1)[:, None] - 2 * q @ x.T + jnp.sum(x**2, 1)), k)


def make_args_and_k():
    return *make_args(), 3


def huge_args():
    return jnp.ones((10_000_000, 16)), jnp.ones((40, 16))


def listed_args():
    return [jnp.ones(3)]


def unfinished(x):
    y = x + 1
    return y @ (1 / 0)


def identity(x):
    return x


def printing(x):
    jax.debug.print("the first is {}", x[0])
    return jnp.cumsum(x)


pi = 3.14
'''


@pytest.fixture
def knn_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """`knn.py` in the current folder, and a `sys.path` and `sys.modules` that forget it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "knn.py"
    path.write_text(KNN)
    yield path
    sys.modules.pop("knn", None)
