"""Products of matrices, and reductions over dimension 0, the last axis."""

from __future__ import annotations

from typing import Any

from .. import ops
from .table import Array, kernel, with_rank


@kernel(ops.mulmat_full_prec)
@kernel(ops.mulmat)
def mulmat(xp: Any, w: Array, x: Array) -> Array:
    """Rows of w times rows of x; consecutive groups of x's slices share one of w's."""
    w4, x4 = with_rank(w, 4), with_rank(x, 4)  # (wb, wa, n, k), (xb, xa, m, k)
    wb, wa, n, k = w4.shape
    xb, xa, m, _ = x4.shape
    if wa == wb == 1:  # else XLA would make a copy of w, transposed
        return (x4 @ xp.matrix_transpose(w4[0, 0])).reshape(*x.shape[:-1], n)
    grouped = x4.reshape(wb, xb // max(wb, 1), wa, xa // max(wa, 1), m, k)
    y = grouped @ xp.matrix_transpose(w4[:, None, :, None])
    return y.reshape(*x.shape[:-1], n)


@kernel(ops.mulmat_id)
def mulmat_id(xp: Any, w: Array, x: Array, ids: Array) -> Array:
    chosen = xp.astype(with_rank(ids, 2), xp.int64)  # (tokens, used)
    rows = xp.broadcast_to(with_rank(x, 3), (*chosen.shape, w.shape[-1]))  # (tokens, used, k)
    return (with_rank(w, 3)[chosen] @ rows[..., None])[..., 0]


@kernel(ops.mean)
def mean(xp: Any, x: Array) -> Array:
    return sum_rows(xp, x) / x.shape[-1]


@kernel(ops.sum_rows)
def sum_rows(xp: Any, x: Array) -> Array:
    return xp.sum(x, axis=-1, keepdims=True)


@kernel(ops.cumsum)
def cumsum(xp: Any, x: Array) -> Array:
    return xp.cumulative_sum(x, axis=-1)


@kernel(ops.argsort)
def argsort(xp: Any, x: Array) -> Array:
    return xp.argsort(x, axis=-1, stable=True)


@kernel(ops.softmax)
def softmax(xp: Any, x: Array) -> Array:
    if not x.shape[-1]:
        return x
    powers = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return powers / sum_rows(xp, powers)


@kernel(ops.rms_norm)
def rms_norm(xp: Any, x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    y = x / xp.sqrt(mean(xp, x * x) + eps)
    return y if weight is None else y * weight.reshape(-1)


@kernel(ops.layer_norm)
def layer_norm(
    xp: Any, x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    y = rms_norm(xp, x - mean(xp, x), weight, eps)
    return y if bias is None else y + bias.reshape(-1)
