"""Writes into arrays as they are stored."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel, with_rank


@kernel(ops.copy)
def copy(x: Array, dst: Array) -> Array:
    dst[...] = x.reshape(dst.shape)
    return dst


@kernel(ops.set_rows)
def set_rows(x: Array, src: Array, ids: Array) -> Array:
    shape = (1,) * (4 - x.ndim) + x.shape
    target = x.reshape(shape) if x.ndim == 4 else x[(None,) * (4 - x.ndim)]  # a view either way
    rows, wanted = with_rank(src, 4), with_rank(ids, 4)[0]  # (b, a, k, n), (ib, ia, k)
    b, a = (np.arange(extent) for extent in rows.shape[:2])
    where = wanted[b[:, None] % wanted.shape[0], a % wanted.shape[1]]  # (b, a, k)
    target[b[:, None, None], a[:, None], where] = rows
    return x
