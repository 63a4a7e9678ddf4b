"""Matrix products."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel, with_rank


@kernel(ops.mulmat_full_prec)
@kernel(ops.mulmat)
def mulmat(w: Array, x: Array) -> Array:
    """Rows of w times rows of x; consecutive groups of x's slices share one of w's."""
    w4, x4 = with_rank(w, 4), with_rank(x, 4)  # (wb, wa, n, k), (xb, xa, m, k)
    wb, wa, n, k = w4.shape
    xb, xa, m, _ = x4.shape
    grouped = x4.reshape(wb, xb // max(wb, 1), wa, xa // max(wa, 1), m, k)
    y = grouped @ w4[:, None, :, None].swapaxes(-1, -2)
    return y.reshape(*x.shape[:-1], n)


@kernel(ops.mulmat_id)
def mulmat_id(w: Array, x: Array, ids: Array) -> Array:
    experts, chosen = with_rank(w, 4)[0], with_rank(ids, 4)[0, 0]  # (experts, n, k), (tokens, used)
    rows = np.broadcast_to(with_rank(x, 4)[0], (*chosen.shape, w.shape[-1]))  # (tokens, used, k)
    y = np.zeros((*chosen.shape, experts.shape[1]), rows.dtype)
    for expert in np.unique(chosen):  # a few, and each is one product
        here = chosen == expert
        y[here] = rows[here] @ experts[expert].T
    return y


@kernel(ops.add_id)
def add_id(x: Array, t2: Array, ids: Array) -> Array:
    return x + with_rank(t2, 4)[0, 0][ids].reshape(x.shape)
