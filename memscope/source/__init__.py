"""Programs as standalone Python that imports JAX only."""

from __future__ import annotations

from .module import python_source as python_source
