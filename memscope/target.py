"""Where a program will run, and what that can hold."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re

import jax

from .errors import TargetError
from .gpu.devices import DEVICES, Device
from .sizes import format_bytes, parse_size

ATTACHED = {"gpu": "cuda", "tpu": "tpu"}
"""Names of what is attached to this machine, and JAX's names of their platforms."""

FRACTION_VARIABLE, FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION", 0.75
"""The share of a GPU's memory that XLA takes for programs (JAX documentation, "GPU memory allocation")."""


@dataclasses.dataclass(frozen=True)
class Target:
    """A place to compile for.

    Attributes:
      name: as given by the user, e.g. "cpu" or "a100-40gb".
      platform: JAX's name of the platform: "cpu", "cuda" or "tpu".
      capacity_bytes: memory a program may use there: on a GPU, what XLA would let it have.
      device: facts of a GPU; None where none are known.
      memory_bytes: all of its memory, where the capacity is a share of it.
      is_here: what is compiled for it can be run by this process.
    """

    name: str
    platform: str
    capacity_bytes: int
    device: Device | None = None
    memory_bytes: int | None = None
    is_here: bool = True

    @property
    def capacity_note(self) -> str:
        """What the capacity is a share of, in words; "" where it is all of the memory."""
        if self.memory_bytes is None or self.memory_bytes == self.capacity_bytes:
            return ""
        share = self.capacity_bytes / self.memory_bytes
        return f"{share:.2g} of its {format_bytes(self.memory_bytes)}: what XLA takes, {FRACTION_VARIABLE}"

    def absent(self, what: str, export: str = "plan.save") -> TargetError:
        """The error of running `what` here, though it was made for another place; `export` takes it there."""
        return TargetError(
            f"{what} was planned for {self.name}, which is not here: export it ({export}) or run it there "
            "(again with target='gpu')."
        )


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def targets() -> tuple[str, ...]:
    """Names that `target=` takes: this CPU, what is attached, and GPUs that need not be here."""
    return ("cpu", *ATTACHED, *DEVICES)


def target(name: str | None = None, *, memory: int | float | str | None = None, like: str | None = None) -> Target:
    """A target by name, or one like another with another amount of memory.

    Args:
      name: one of `targets()`; what it is called where `like` is given.
      memory: bytes of all of its memory, as an int or a text such as "24GiB".
      like: the named GPU whose other facts it has.

    Raises:
      TargetError: no such target, or `memory` without a GPU to be like.
      ValueError: `memory` is no size.

    Example:
      >>> memscope.plan(nearest, q, x, target=memscope.target(memory="24GiB", like="a100-40gb"))
    """
    if like is None:
        if memory is not None:
            raise TargetError(f"a target of {memory!r} of memory is like which GPU? Say like={next(iter(DEVICES))!r}.")
        return resolve(name)
    device = resolve(like).device
    if device is None:
        raise TargetError(f"like={like!r} names no GPU whose facts are known: use one of {_listed(DEVICES)}.")
    if memory is not None:
        device = dataclasses.replace(device, memory_bytes=parse_size(memory))
    return _absent_gpu(name or f"{like} with {format_bytes(device.memory_bytes)}", device)


def resolve(target: str | Target | None) -> Target:
    """The Target of that name; None is where JAX runs by default: an attached GPU or TPU, else this machine's CPU.

    Raises:
      TargetError: no such target, the nearest names being offered, or nothing of the kind is attached.
    """
    if isinstance(target, Target):
        return target
    if target is None:
        default = jax.default_backend()
        return _attached(default) if default in ATTACHED else resolve("cpu")
    if target == "cpu":
        return Target("cpu", "cpu", physical_memory())
    if not isinstance(target, str):
        raise TargetError(f"a target is a name such as 'cpu', not {type(target).__name__}.")
    if target in DEVICES:
        return _absent_gpu(target, DEVICES[target])
    if target in ATTACHED:
        return _attached(target)
    raise TargetError(f"unknown target {target!r}: use one of {_listed(_near(target))}.")


def memory_fraction() -> float:
    """The share of a GPU's memory that XLA would take, by the user's own setting where there is one.

    Raises:
      TargetError: the setting is no number above 0.
    """
    text = os.environ.get(FRACTION_VARIABLE, "")
    try:
        fraction = float(text or FRACTION)
    except ValueError:
        fraction = 0.0
    if fraction <= 0:
        raise TargetError(f"{FRACTION_VARIABLE}={text!r} is no share of a GPU's memory: set it to 0.75, say.")
    return fraction


def roomier(target: Target, size: int) -> tuple[str, ...]:
    """The named targets of the same platform on which a program may use that many bytes, the smallest first."""
    if target.platform != "cuda":
        return ()
    known = sorted((resolve(name) for name in DEVICES), key=lambda place: place.capacity_bytes)
    return tuple(place.name for place in known if place.capacity_bytes >= size)


def _absent_gpu(name: str, device: Device) -> Target:
    memory = device.memory_bytes
    return Target(name, "cuda", int(min(1.0, memory_fraction()) * memory), device, memory, is_here=False)


def _attached(name: str) -> Target:
    try:
        found = jax.local_devices(backend=name)[0]
    except RuntimeError:
        raise TargetError(
            f"no {name.upper()} is attached to this process: name the GPU that it will run on, as in "
            f"target={next(iter(DEVICES))!r} (memscope.targets() lists them)."
        ) from None
    stats = found.memory_stats() or {}
    if "bytes_limit" not in stats:
        raise TargetError(f"the attached {name.upper()} does not tell its memory: give a limit, and name its model.")
    known = next((device for device in DEVICES.values() if device.model == found.device_kind), None)
    return Target(name, ATTACHED[name], int(stats["bytes_limit"]), known)


def _near(name: str) -> tuple[str, ...]:
    """The names that look most like this one, or all."""
    plain = {re.sub(r"[^a-z0-9]", "", known): known for known in targets()}
    wanted = re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower())
    inside = [known for text, known in plain.items() if wanted and (wanted in text or text in wanted)]
    near = difflib.get_close_matches(wanted, plain, n=3, cutoff=0.5)
    return tuple(dict.fromkeys([*inside, *(plain[text] for text in near)])) or targets()


def _listed(names: object) -> str:
    assert hasattr(names, "__iter__")
    return ", ".join(map(repr, names))
