"""Matrix products."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .table import Array, kernel


def rank4(x: Array) -> Array:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)


def product(w: Array, x: Array) -> Array:
    """Rows of w times rows of x; consecutive groups of x's slices share one of w's."""
    w4, x4 = rank4(w), rank4(x)  # (wb, wa, n, k), (xb, xa, m, k)
    wb, wa, n, k = w4.shape
    xb, xa, m, _ = x4.shape
    grouped = x4.reshape(wb, xb // max(wb, 1), wa, xa // max(wa, 1), m, k)
    y = grouped @ w4[:, None, :, None].swapaxes(-1, -2)
    return y.reshape(*x.shape[:-1], n)


@kernel(ops.mulmat)
def mulmat(w: Array, x: Array) -> Array:
    return product(w, x)


@kernel(ops.mulmat_full_prec)
def mulmat_full_prec(w: Array, x: Array) -> Array:
    return product(w, x)


@kernel(ops.mulmat_id)
def mulmat_id(w: Array, x: Array, ids: Array) -> Array:
    experts, chosen = rank4(w)[0], rank4(ids)[0, 0]  # (experts, n, k), (tokens, used)
    rows = np.broadcast_to(rank4(x)[0], (*chosen.shape, w.shape[-1]))  # (tokens, used, k)
    y = np.zeros((*chosen.shape, experts.shape[1]), rows.dtype)
    for expert in np.unique(chosen):  # a few, and each is one product
        here = chosen == expert
        y[here] = rows[here] @ experts[expert].T
    return y


@kernel(ops.add_id)
def add_id(x: Array, t2: Array, ids: Array) -> Array:
    return x + rank4(t2)[0, 0][ids].reshape(x.shape)
