"""The only module that touches JAX's private names, each with the public name it waits for."""

from __future__ import annotations

import contextlib
import glob
import logging
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from jax._src import config, source_info_util, traceback_util
from jax.extend import source_info_util as public_source_info
from jax.extend.core import unsafe_am_i_under_a_jit_DO_NOT_USE  # type: ignore[attr-defined]


def user_frame(source_info: Any) -> tuple[str, int] | None:
    """File and line of the innermost frame that is not JAX's own.

    `jax.extend.source_info_util.summarize` gives the same as text only; waits for a public `user_frame`.
    """
    frame = source_info_util.user_frame(source_info.traceback)
    return None if frame is None else (frame.file_name, frame.start_line)


def user_line(source_info: Any) -> str | None:
    """The user's line as "file.py:12", or None where JAX kept no traceback."""
    frame = user_frame(source_info)
    return None if frame is None else f"{_file_label(frame[0])}:{frame[1]}"


def _file_label(path: str) -> str:
    """The file's name; for a notebook cell, whose file is a temporary one, its prompt: "In[5]"."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    named = None if shell is None else shell.compile.format_code_name(path)
    return os.path.basename(path) if named is None else str(named[1])


def at_source(source_info: Any, name_stack: Any = None) -> Any:
    """A context in which newly bound eqns carry `source_info` as their own."""
    return public_source_info.user_context(source_info.traceback, name_stack=name_stack)


def register_as_internal(package: str) -> None:
    """Hides the frames of a package from source lines and filtered tracebacks; its examples stay, as user code.

    The filter of tracebacks has no public name, the one of source lines has.
    """
    for entry in sorted(os.listdir(package)):
        if entry not in ("examples", "__pycache__"):
            path = os.path.join(package, entry)
            public_source_info.register_exclusion(path)
            traceback_util.register_exclusion(path)
    # A call such as np.sum(x) of a traced x passes through NumPy on its way to JAX.
    public_source_info.register_exclusion(os.path.dirname(np.__file__))


def quiet_compile_only_plugin() -> None:
    """Keeps back JAX's traceback about a CUDA plugin without CUDA's libraries where there is no NVIDIA GPU.

    There it is installed to compile with, and is of no other use; JAX goes on to the CPU by itself. The logger's name
    is private; waits for a setting of the plugin's own.
    """
    logging.getLogger("jax._src.xla_bridge").addFilter(_is_worth_saying)


def _is_worth_saying(record: logging.LogRecord) -> bool:
    about_plugin = "plugin configuration error" in str(record.msg) and "xla_cuda" in str(record.args)
    return not about_plugin or bool(glob.glob("/dev/nvidia[0-9]*"))


def scan_operands(params: dict[str, Any]) -> tuple[int, int]:
    """How many operands of a `scan` eqn are constants and how many are carries; they come in this order.

    JAX 0.12 keeps them as the parts of a tree, earlier versions as numbers.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def under_jit() -> bool:
    """True while some `jit` is being traced; waits for a public `jax.core.trace_state_clean`."""
    return bool(unsafe_am_i_under_a_jit_DO_NOT_USE())


api_boundary = traceback_util.api_boundary
"""Takes the frames of JAX and of memscope out of the traceback of an exception; waits for a public name."""


@contextlib.contextmanager
def without_cache_writes() -> Iterator[None]:
    """What this thread compiles meanwhile is not written to JAX's persistent compilation cache.

    `jax.config.update` sets the same for all threads; waits for a public context for this one.
    """
    with config.persistent_cache_min_compile_time_secs(math.inf):
        yield
