"""The table of this backend's kernels."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from backbay import KernelTable

Array = NDArray[Any]

kernel = KernelTable()


def with_rank(x: Array, rank: int) -> Array:
    """x with exactly `rank` axes: leading axes of extent 1 are added or dropped."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape[-rank:])
