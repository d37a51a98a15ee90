"""Where a program will run, and what that can hold."""

from __future__ import annotations

import dataclasses
import difflib
import os

from .errors import TargetError


@dataclasses.dataclass(frozen=True)
class Target:
    """A place to compile for.

    Attributes:
      name: as given by the user, e.g. "cpu".
      platform: JAX's name of the platform.
      capacity_bytes: memory a program may use there.
    """

    name: str
    platform: str
    capacity_bytes: int


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def targets() -> tuple[str, ...]:
    """Names that `target=` takes."""
    return ("cpu",)


def resolve(target: str | Target | None) -> Target:
    """The Target of that name; None is this machine's CPU.

    Raises:
      TargetError: no such target; the nearest names are offered.
    """
    if isinstance(target, Target):
        return target
    if target is None or target == "cpu":
        return Target("cpu", "cpu", physical_memory())
    if not isinstance(target, str):
        raise TargetError(f"a target is a name such as 'cpu', not {type(target).__name__}.")
    near = difflib.get_close_matches(str(target), targets(), n=3, cutoff=0.3) or targets()
    raise TargetError(f"unknown target {target!r}: use one of {', '.join(map(repr, near))}.")
