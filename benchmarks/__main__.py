"""All benchmarks, one after the other: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import sys

from . import cases, time_ratio, truth

if __name__ == "__main__":
    untrue = truth.main([])
    print()
    time_ratio.main([])
    print()
    cases.main([])
    sys.exit(untrue)
