"""The compile worker as the rest of memscope sees it: one process, started when needed, kept warm, never trusted.

Whatever goes wrong in there is a TargetError here, in one sentence; the next compile starts a new process.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from ..errors import RefusedError, TargetError
from . import worker
from .devices import Device, target_config

COMPILE_SECONDS = 600.0
"""After which a compile is ended: XLA takes minutes over large constants, and no program of a person took longer."""

INSTALL = "pip install 'memscope-jax[gpu]' (130 MB; it needs no GPU and no CUDA toolkit)"
PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")


TOO_LARGE = ("launch needs more blocks", "Couldn't find output tile sizes")
"""What XLA says of a product of some 10^12 elements or more."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What XLA says of a program compiled for a GPU: its own byte counts, and the scheduled module."""

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    module: bytes
    assignment: bytes


def check_installed(target: str) -> None:
    """Refuses where XLA's GPU compiler can't be had, or is not the one that belongs to this JAX.

    Raises:
      TargetError: the extra is not installed, or its version is not jaxlib's.
    """
    plugin = next((name for name in PLUGINS if _version(name) is not None), None)
    if plugin is None:
        where = INSTALL if sys.platform == "linux" else "it exists for Linux only"
        raise TargetError(f"a preview for {target} needs XLA's GPU compiler, which is not installed: {where}.")
    pjrt = plugin.replace("plugin", "pjrt")
    versions = {name: _version(name) for name in ("jaxlib", plugin, pjrt)}
    if len(set(versions.values())) > 1:
        found = ", ".join(f"{name} is {version or 'missing'}" for name, version in versions.items())
        raise TargetError(
            f"XLA's GPU compiler does not belong to this JAX: {found}. Install one version of all three: "
            f"pip install {plugin}=={versions['jaxlib']} {pjrt}=={versions['jaxlib']}."
        )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Worker:
    """A compile process. Its methods may be called from any thread; compiles happen one after another."""

    def __init__(self, seconds: float = COMPILE_SECONDS) -> None:
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] | None = None

    def start(self) -> None:
        """Starts the process where none is running, so that it gets ready while other work is done."""
        with self._lock:
            self._running()

    def stop(self) -> None:
        """Ends the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, self._messages):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()

    def compile(self, name: str, target: str, device: Device, exported: bytes, donated: Sequence[bool]) -> Answer:
        """Compiles a serialized `jax.export.Exported` for a GPU.

        Args:
          name, target: what errors call the function and the GPU.
          donated: which of the flat arguments may be overwritten.

        Raises:
          RefusedError: XLA compiled other programs, and not this one.
          TargetError: XLA lacks something, crashed, or took longer than `seconds`.
        """
        check_installed(target)
        header = {"config": target_config(device), "donated": list(donated)}
        sizes, (module, assignment) = self._ask(header, [exported], f"compiling {name} for {target}")
        return Answer(module=module, assignment=assignment, **sizes)

    def _ask(self, header: dict[str, Any], parts: list[bytes], doing: str) -> worker.Message:
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            said = self._said()
            late = threading.Event()
            watch = threading.Timer(self.seconds, _end, (process, late))
            watch.daemon = True
            watch.start()
            try:
                worker.send(process.stdin, header, parts)
                answer = worker.receive(process.stdout)
            except OSError:
                answer = None
            except BaseException:  # an interrupt: its answer would be taken for the next one's
                self.stop()
                raise
            finally:
                watch.cancel()
            if answer is not None and "error" not in answer[0]:
                return {k: v for k, v in answer[0].items() if k != "parts"}, answer[1]
            if answer is not None:
                raise _refusal(answer[0]["error"], doing)
            status = process.wait()
            last = self._last_line(said)
            self.stop()
            if late.is_set():
                raise TargetError(f"{doing} took longer than {self.seconds:g} s and was ended.")
            raise TargetError(f"XLA's GPU compiler crashed ({_status(status)}) while {doing}{last}.")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        if self._process is None:
            self._messages = tempfile.TemporaryFile(prefix="memscope-")  # noqa: SIM115 (it lives as long as the process)
            self._process = subprocess.Popen(
                # -P: a jax.py in the current folder must not shadow JAX.
                [sys.executable, "-P", str(Path(worker.__file__))],
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                start_new_session=True,  # an interrupt at the terminal is for this process
            )
        return self._process

    def _said(self) -> int:
        assert self._messages is not None
        return os.fstat(self._messages.fileno()).st_size

    def _last_line(self, since: int) -> str:
        assert self._messages is not None
        said = os.pread(self._messages.fileno(), 1 << 20, since).decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return f": {lines[-1].rstrip('.')}" if lines else ""


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _environment() -> dict[str, str]:
    """This process's environment, with JAX on the CPU: XLA's GPU plugin then starts without CUDA's libraries.

    `XLA_FLAGS` stays: it would hold on the GPU as well.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    return {**env, "JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}


def _refusal(error: str, doing: str) -> TargetError:
    """One sentence on an error that XLA, or JAX in the worker, raised."""
    text = " ".join(error.split())
    if any(sign in text.lower() for sign in ("custom call", "custom-call", "no ffi handler")):
        return TargetError(
            f"{doing} failed: it calls a kernel of its own (FFI or Pallas), which can't be compiled ahead of time here "
            f"({_cut(text)}). Preview what surrounds it, or profile it where the GPU is."
        )
    if "ptxas" in text or "libdevice" in text:
        return TargetError(
            f"{doing} failed: CUDA's assembler or its device library is missing ({_cut(text)}). {INSTALL} has both."
        )
    if any(sign in text for sign in TOO_LARGE):
        return RefusedError(f"{doing} failed: XLA has no kernel for an array this large ({_cut(text)})")
    return RefusedError(f"{doing} failed: {_cut(text)}")


def _cut(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."


def _status(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"exit status {status}"


_shared = Worker()


def shared() -> Worker:
    """The worker that all of this process's compiles go to."""
    return _shared


def _forget() -> None:
    """In a forked child: the process is the parent's, and so are the pipes to it."""
    global _shared
    _shared = Worker()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: shared().stop())
