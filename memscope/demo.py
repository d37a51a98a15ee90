"""`memscope demo`: the main job on real data, from a function that takes half a gigabyte to one that takes a tenth."""

from __future__ import annotations

import importlib.resources
import importlib.util
import inspect
import os
import pathlib
import shutil
import sys
import textwrap
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .lines import format_seconds
from .options import UsageError
from .sizes import format_bytes

if TYPE_CHECKING:
    from .check import Check
    from .plan import Plan
    from .profile import Profile


def run_demo(folder: pathlib.Path) -> int:
    """Profiles, shrinks, runs and checks a nearest-neighbour search; writes what comes of it to `folder`.

    Returns:
      An exit code: 0, or 1 where the rewritten function gave other values.

    Raises:
      UsageError: scikit-learn, whose digits are searched, is not installed.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError("the demo searches scikit-learn's digits: pip install 'memscope-jax[demo]'.")
    import memscope

    folder.mkdir(exist_ok=True)
    knn = _write_example(folder)
    queries, points = args = knn.make_args()

    _title(1, "A function", f"{folder}/knn.py")
    print(f"The ten nearest of {len(points):,} handwritten digits, for each of {len(queries):,} noisy copies:\n")
    print(textwrap.indent(inspect.getsource(knn.nearest).rstrip(), "    "))

    _title(2, "Where its memory goes", "compiled, not run")
    profile = memscope.profile(knn.nearest, *args)
    print(profile)

    limit = profile.argument_bytes + profile.output_bytes + profile.temp_bytes // 10
    _title(3, f"The same in {format_bytes(limit)}", "arguments, results and a tenth of the temporaries")
    start = time.perf_counter()
    plan = memscope.plan(knn.nearest, *args, limit=limit)
    print(f"{plan.explain().rstrip()}\n\nPlanned in {time.perf_counter() - start:.1f} s.")

    _title(4, "Both, run and measured", "each peak in a fresh process")
    check = plan.check(*args)
    print(_comparison(profile, plan, check, _measured_original(knn, args)))
    print(f"\nThe values {_verdict(check)}.")
    print(f"Ten neighbours name the right digit for {knn.accuracy(plan.fn(*args)[1]):.1%} of the noisy copies.")

    _title(5, "What you have now", f"{folder}/")
    _write_results(folder, profile, plan)
    print(_next_steps(folder, limit))
    return 0 if check.ok else 1


def _write_example(folder: pathlib.Path) -> ModuleType:
    """The example as a file of the user's own: memscope names lines in it, and they can open it."""
    path = folder / "knn.py"
    path.write_text((importlib.resources.files("memscope") / "examples" / "knn.py").read_text(encoding="utf-8"))
    from .load import load_function

    return sys.modules[load_function(f"{path}:nearest").__module__]


def _measured_original(knn: ModuleType, args: tuple[Any, ...]) -> int | None:
    """Bytes that the function as written takes in a fresh process, arguments included."""
    from .measure import export_job, measure

    job = export_job("nearest", knn.nearest, args)
    growth = measure([job], args, budget_seconds=0)[0].growth_bytes
    return None if growth is None else growth + sum(arg.nbytes for arg in args)


def _comparison(profile: Profile, plan: Plan, check: Check, original_bytes: int | None) -> str:
    rows = [
        ("", "as written", "rewritten"),
        ("peak, by XLA", format_bytes(profile.peak_bytes), format_bytes(plan.peak_bytes)),
        ("peak, measured", _bytes_or_dash(original_bytes), _bytes_or_dash(check.measured_peak_bytes)),
        ("time", _seconds_or_dash(check.original_seconds), _seconds_or_dash(check.seconds)),
    ]
    return "\n".join(f"    {name:<16}{before:>12}{after:>12}" for name, before, after in rows)


def _bytes_or_dash(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _seconds_or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _verdict(check: Check) -> str:
    return "agree" if check.ok else f"do NOT agree: {check.how}"


def _write_results(folder: pathlib.Path, profile: Profile, plan: Plan) -> None:
    (folder / "report.html").write_text(profile.to_html(), encoding="utf-8")
    plan.save(folder / "knn_safe.py")
    for name, what in (
        ("knn.py", "the function as written"),
        ("knn_safe.py", "the version that fits: needs jax only"),
        ("report.html", "every buffer, with its line"),
    ):
        print(f"    {folder}/{name:<14}{what}")


def _next_steps(folder: pathlib.Path, limit: int) -> str:
    installed = pathlib.Path(sys.executable).with_name("memscope")
    command = "memscope" if shutil.which("memscope") else os.path.relpath(installed)
    return f"""
Next, the same from a shell, and then with a function of your own:

    {command} plan {folder}/knn.py:nearest --args {folder}/knn.py:make_args --limit {limit}
"""


def _title(number: int, text: str, aside: str) -> None:
    bold, faint, plain = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")
    print(f"\n{bold}{number}. {text}{plain}  {faint}({aside}){plain}\n", flush=True)
