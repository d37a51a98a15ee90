"""Finding a function that the command line names, as in "knn.py:nearest"."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pathlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .options import UsageError


def load_function(spec: str) -> Callable[..., Any]:
    """The function at "file.py:name", "package.module:name" or "file.py:Class.method".

    Raises:
      UsageError: no such file, module or function.
      Whatever the file raises while it is imported.
    """
    where, colon, name = spec.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{spec!r} names no function: write file and function, as in knn.py:nearest.")
    module = _load_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(_missing(found, part, where))
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name} in {where} is of type {type(found).__name__}, not a function.")
    return found


def _load_module(where: str) -> ModuleType:
    path = pathlib.Path(where)
    if path.suffix == ".py" or path.is_file():
        return _load_file(path)
    _search_first(pathlib.Path.cwd())
    try:
        known = importlib.util.find_spec(where) is not None
    except (ModuleNotFoundError, ValueError):
        known = False
    if not known:
        raise UsageError(f"there is no file or module {where}: give the path of a .py file, as in knn.py:nearest.")
    return importlib.import_module(where)


def _load_file(path: pathlib.Path) -> ModuleType:
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=1)
        hint = f"did you mean {path.with_name(near[0])}?" if near else "check the path."
        raise UsageError(f"there is no file {path}: {hint}")
    path = path.resolve()
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"_memscope_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file: give the path of a .py file.")
    _search_first(path.parent)  # as `python file.py` does, so that its neighbours can be imported
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _search_first(folder: pathlib.Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _missing(owner: Any, name: str, where: str) -> str:
    functions = [n for n, value in vars(owner).items() if callable(value) and not n.startswith("_")]
    local = [n for n in functions if getattr(getattr(owner, n), "__module__", None) == getattr(owner, "__name__", None)]
    near = difflib.get_close_matches(name, functions, n=3) or sorted(local)[:5]
    return f"there is no {name} in {where}: " + (f"it has {', '.join(near)}." if near else "it defines no function.")
