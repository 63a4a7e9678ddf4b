"""The table of this backend's kernels."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from backbay import KernelTable

Array = NDArray[Any]

kernel = KernelTable()
