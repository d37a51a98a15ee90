"""memscope in a notebook: `%load_ext memscope` brings `%memsafe` and `%%memsafe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Registers the magics and the completion of their options."""
    from . import completion
    from .magics import MemscopeMagics

    shell.register_magics(MemscopeMagics)
    completion.register(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Takes back what `load_ipython_extension` registered."""
    from . import completion

    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("memsafe", None)
    completion.unregister(shell)
