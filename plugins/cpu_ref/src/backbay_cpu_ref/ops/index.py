"""Rows by number, of arrays as they are stored."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel, with_rank


@kernel(ops.rows)
def rows(x: Array, ids: Array) -> Array:
    table, wanted = with_rank(x, 4), with_rank(ids, 4)[0]  # (b, a, count, n), (b, a, k)
    b, a = (np.arange(extent) % table.shape[i] for i, extent in enumerate(wanted.shape[:2]))
    return table[b[:, None, None], a[:, None], wanted]
