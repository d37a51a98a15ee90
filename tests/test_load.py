from __future__ import annotations

import pathlib

import pytest

from memscope.load import load_function
from memscope.options import UsageError


def test_a_function_of_a_file(knn_file: pathlib.Path) -> None:
    assert load_function("knn.py:nearest").__name__ == "nearest"
    assert load_function(f"{knn_file}:nearest").__name__ == "nearest"


def test_a_function_of_a_module(knn_file: pathlib.Path) -> None:
    assert load_function("knn:nearest").__name__ == "nearest"
    assert load_function("math:sqrt")(4) == 2


def test_a_method(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text("class Model:\n    @staticmethod\n    def apply(x):\n        return x\n")
    assert load_function(f"{tmp_path / 'model.py'}:Model.apply")(3) == 3


def test_a_file_finds_its_neighbours(knn_file: pathlib.Path) -> None:
    knn_file.with_name("uses_knn.py").write_text("import knn\n\ndef twice(q, x):\n    return knn.nearest(q, x)\n")
    assert load_function("uses_knn.py:twice").__name__ == "twice"


def test_a_file_named_as_a_module_that_is_in_use(tmp_path: pathlib.Path) -> None:
    (tmp_path / "jax.py").write_text("def mine(x):\n    return x\n")
    import jax

    assert load_function(f"{tmp_path / 'jax.py'}:mine")(2) == 2
    assert hasattr(jax, "jit")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("knn.py", "write file and function"),
        ("knn.py:", "write file and function"),
        (":nearest", "write file and function"),
        ("kn.py:nearest", "did you mean knn.py?"),
        ("nowhere/x.py:f", "there is no file nowhere/x.py"),
        ("no_such_module:f", "there is no file or module no_such_module"),
        ("knn.py:nearst", "it has nearest"),
        ("knn.py:pi", "not a function"),
        ("knn.py:nearest.inner", "there is no inner"),
    ],
)
def test_what_is_missing_is_named(knn_file: pathlib.Path, spec: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_function(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_raises_raises(tmp_path: pathlib.Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_function(f"{tmp_path / 'broken.py'}:f")
