"""memscope: where the memory of a JAX function goes, and the version of it that fits.

print(memscope.profile(fn, *args))                 # XLA's account, before anything runs
safe = memscope.plan(fn, *args, limit="1GiB")      # the rewritten function, and why
fn = memscope.memsafe(fn, limit="1GiB")            # used like jax.jit
fn = memscope.schedule(fn, *args).fn               # the same instructions in the order that needs the least
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING

from ._jax_private import quiet_compile_only_plugin as _quiet_compile_only_plugin
from ._jax_private import register_as_internal as _register_as_internal

_register_as_internal(_os.path.dirname(__file__))
_quiet_compile_only_plugin()

from .check import Check as Check  # noqa: E402 (the frames of all that follows are hidden from users)
from .compare import Comparison as Comparison  # noqa: E402
from .compare import compare as compare  # noqa: E402
from .errors import LimitError as LimitError  # noqa: E402
from .errors import TargetError as TargetError  # noqa: E402
from .frontier import Point as Point  # noqa: E402
from .frontier import frontier as frontier  # noqa: E402
from .loop import Loop as Loop  # noqa: E402
from .memsafe import memsafe as memsafe  # noqa: E402
from .plan import Alternative as Alternative  # noqa: E402
from .plan import Plan as Plan  # noqa: E402
from .plan import plan as plan  # noqa: E402
from .profile import Buffer as Buffer  # noqa: E402
from .profile import Profile as Profile  # noqa: E402
from .profile import profile as profile  # noqa: E402
from .schedule.schedule import Schedule as Schedule  # noqa: E402
from .schedule.schedule import schedule as schedule  # noqa: E402
from .target import Target as Target  # noqa: E402
from .target import target as target  # noqa: E402
from .target import targets as targets  # noqa: E402

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__version__ = "0.1.0"


def load_ipython_extension(shell: InteractiveShell) -> None:
    """`%load_ext memscope`: the notebook side, imported only now."""
    from memscope_jupyter import load_ipython_extension as load

    load(shell)
