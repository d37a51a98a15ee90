"""A call to look into: a function with its arguments, as the command line and the notebook build it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .errors import ArgumentError
from .options import Options, UsageError
from .trace import RESERVED, check_keywords, function_name

if TYPE_CHECKING:
    from .plan import Plan, Request
    from .profile import Profile
    from .schedule.schedule import Schedule

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """`fn(*args, **kwargs)`, not run. Any array may be a `jax.ShapeDtypeStruct`.

    `label` is what the user calls the function: a gradient bears its loss's own name.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    label: str | None = None

    @property
    def name(self) -> str:
        return self.label or function_name(self.fn)

    @property
    def named(self) -> Callable[..., Any]:
        """The function under the name that the user has for it."""
        if self.label is None or self.label == getattr(self.fn, "__name__", None):
            return self.fn

        @functools.wraps(self.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.fn(*args, **kwargs)

        call.__name__ = self.label
        return call

    @property
    def static_argnums(self) -> tuple[int, ...]:
        return tuple(i for i, arg in enumerate(self.args) if is_static(arg))

    @property
    def static_argnames(self) -> tuple[str, ...]:
        return tuple(name for name, arg in self.kwargs.items() if is_static(arg))

    @property
    def abstract(self) -> bool:
        """True where an argument has a shape but no values, so that nothing can be run."""
        return any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves((self.args, self.kwargs)))

    def check(self) -> None:
        """Refuses what can be told to fail before anything is traced.

        Raises:
          UsageError: not a function, or it does not take these arguments.
        """
        if not callable(self.fn):
            raise UsageError(f"a value of type {type(self.fn).__name__} can't be called: name a function.")
        clash = [name for name in self.kwargs if name in RESERVED]
        if clash:
            raise UsageError(
                f"memscope takes the keyword {clash[0]!r} for itself: "
                f"bind it first, as in functools.partial({self.name}, {clash[0]}=...)."
            )
        try:
            signature = inspect.signature(self.fn)
        except (TypeError, ValueError):
            return  # a callable that does not tell: tracing it will
        try:
            signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            raise UsageError(f"{self.name}{signature} can't be called with these arguments: {error}.") from None

    def profile(self, options: Options) -> Profile:
        """XLA's account of the function as written."""
        import memscope

        with _refusals():
            return memscope.profile(self.named, *self.args, target=options.target, **self._static, **self.kwargs)

    def plan(self, options: Options, progress: Progress | None = None) -> Plan:
        """The version that fits `options.limit`; raises LimitError where there is none."""
        import memscope

        with _refusals():
            return memscope.plan(
                self.named,
                *self.args,
                limit=options.limit,
                target=options.target,
                progress=progress,
                **self._static,
                **self.kwargs,
            )

    def schedule(self, options: Options, seconds: float, progress: Progress | None = None) -> Schedule:
        """The order of instructions that needs the least memory, searched for so many seconds."""
        import memscope

        with _refusals():
            return memscope.schedule(
                self.named,
                *self.args,
                target=options.target,
                seconds=seconds,
                progress=progress,
                **self._static,
                **self.kwargs,
            )

    def request(self, options: Options, progress: Progress | None = None) -> Request:
        """The call traced, for a profile and for plans under one limit after another."""
        from .plan import request_plan

        with _refusals():
            check_keywords(self.named)
            return request_plan(
                self.named,
                self.args,
                self.kwargs,
                target=options.target,
                progress=progress,
                donate_argnums=(),
                **self._static,
            )

    @property
    def _static(self) -> dict[str, Any]:
        return {"static_argnums": self.static_argnums, "static_argnames": self.static_argnames}


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turns what `trace` says of the arguments into a UsageError; what the user's function raises passes."""
    try:
        yield
    except ArgumentError as error:
        raise UsageError(str(error)) from None


def is_static(value: Any) -> bool:
    """True for an argument whose value, not its shape, belongs to the call as written.

    A whole number, a flag, a text, a function: `knn(q, x, 10)` means ten neighbours, and a traced ten
    would not do for `top_k`. A float stays an argument of the rewritten function.
    """
    leaves = jax.tree.leaves(value, is_leaf=lambda x: x is None)
    if not leaves or any(isinstance(leaf, (float, complex)) or _is_array(leaf) for leaf in leaves):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, type):  # np.float32, the class, has a shape and a dtype too
        return False
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def abstract_arguments(make_args: Callable[[], Any]) -> tuple[Any, ...]:
    """What `make_args()` returns, its arrays as shapes where it can be traced, so that nothing is allocated."""
    made: list[Any] = []

    def arrays() -> list[Any]:
        leaves, tree = jax.tree.flatten(make_args())
        made[:] = [leaves, tree]
        return [leaf for leaf in leaves if isinstance(leaf, (jax.Array, np.ndarray, np.generic))]

    try:
        shapes = iter(jax.eval_shape(arrays))
    except Exception:  # not traceable, or wrong: making them for real tells which
        return make_args()
    leaves, tree = made
    return tree.unflatten(
        [next(shapes) if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) else leaf for leaf in leaves]
    )


def user_traceback(error: BaseException, *own: str) -> TracebackType | None:
    """The traceback of `error` without memscope's frames, where the user's own code raised.

    All of it where no frame of the user's is left: memscope itself failed, and its frames tell where.

    Args:
      error: an exception that is being handled.
      own: further folders whose frames are not the user's.
    """
    hidden = (*_OWN, *own)
    kept = [frame for frame in _frames(error) if not _file(frame).startswith(hidden)]
    if all(_file(frame).startswith(_LIBRARIES) for frame in kept):
        return error.__traceback__
    rest: TracebackType | None = None
    for frame in reversed(kept):
        rest = TracebackType(rest, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rest


def _folder(module: ModuleType) -> str:
    return os.path.dirname(module.__file__ or "") + os.sep


_OWN = (os.path.dirname(__file__) + os.sep, contextlib.__file__, "<frozen ")  # and what stands between ours and theirs
_LIBRARIES = (_folder(jax), _folder(np))


def _frames(error: BaseException) -> list[TracebackType]:
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _file(traceback: TracebackType) -> str:
    return traceback.tb_frame.f_code.co_filename
