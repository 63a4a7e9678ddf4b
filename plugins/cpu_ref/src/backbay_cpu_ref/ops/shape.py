"""Copies that change a shape. Ops that only move elements get arrays as they are stored."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel


@kernel(ops.contiguous)
def contiguous(x: Array, *shape: int) -> Array:
    return x  # storing it lays it out


@kernel(ops.pad_ext)
def pad_ext(
    x: Array,
    lp0: int,
    rp0: int,
    lp1: int = 0,
    rp1: int = 0,
    lp2: int = 0,
    rp2: int = 0,
    lp3: int = 0,
    rp3: int = 0,
) -> Array:
    amounts = [(lp3, rp3), (lp2, rp2), (lp1, rp1), (lp0, rp0)]
    rank = max(x.ndim, *(4 - i for i, amount in enumerate(amounts) if amount != (0, 0)), 0)
    return np.pad(x.reshape((1,) * (rank - x.ndim) + x.shape), amounts[4 - rank :])


@kernel(ops.concat)
def concat(x: Array, t2: Array, dim: int) -> Array:
    rank = max(x.ndim, t2.ndim, dim + 1)
    x, t2 = (a.reshape((1,) * (rank - a.ndim) + a.shape) for a in (x, t2))
    return np.concatenate([x, t2], axis=rank - 1 - dim)


@kernel(ops.repeat)
def repeat(x: Array, dim: int, n: int) -> Array:
    x = x.reshape((1,) * (dim + 1 - x.ndim) + x.shape)
    times = [1] * x.ndim
    times[x.ndim - 1 - dim] = n
    return np.tile(x, times)
