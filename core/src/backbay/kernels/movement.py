"""Ops that move elements, write them, or keep some: shapes, rows, diagonals and triangles."""

from __future__ import annotations

from typing import Any

from .. import ops
from .table import Array, Function, extended, kernel, with_rank, zeros


@kernel(ops.contiguous)
def contiguous(xp: Any, x: Array, *shape: int) -> Array:
    return x  # the result is stored in one piece


@kernel(ops.copy)
def copy(xp: Any, x: Array, dst: Array) -> Array:
    return x.reshape(dst.shape)


@kernel(ops.concat)
def concat(xp: Any, x: Array, t2: Array, dim: int) -> Array:
    rank = max(x.ndim, t2.ndim, dim + 1)
    return xp.concat([with_rank(x, rank), with_rank(t2, rank)], axis=rank - 1 - dim)


@kernel(ops.repeat)
def repeat(xp: Any, x: Array, dim: int, n: int) -> Array:
    x = with_rank(x, max(x.ndim, dim + 1))
    return xp.tile(x, tuple(n if axis == x.ndim - 1 - dim else 1 for axis in range(x.ndim)))


@kernel(ops.rows)
def rows(xp: Any, x: Array, ids: Array) -> Array:
    table, wanted = with_rank(x, 4), with_rank(ids, 3)  # (b, a, count, n), (b, a, k)
    b, a = (xp.arange(extent) % max(table.shape[i], 1) for i, extent in enumerate(wanted.shape[:2]))
    return table[b[:, None, None], a[None, :, None], xp.astype(wanted, xp.int64)]


@kernel(ops.set_rows)
def set_rows(xp: Any, x: Array, src: Array, ids: Array) -> Array:
    rows, wanted = with_rank(src, 4), with_rank(ids, 3)  # (b, a, k, n), (ib, ia, k)
    b, a = (xp.arange(extent) for extent in rows.shape[:2])
    where = wanted[b[:, None] % max(wanted.shape[0], 1), a[None] % max(wanted.shape[1], 1)]  # (b, a, k)
    index = b[:, None, None], a[None, :, None], xp.astype(where, xp.int64)
    x = with_rank(x, 4)
    if hasattr(x, "at") and hasattr(x.at[index], "set"):  # arrays of JAX never change
        return x.at[index].set(rows)
    new = xp.asarray(x, copy=True)
    new[index] = rows
    return new


@kernel(ops.pad_ext)
def pad_ext(
    xp: Any,
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
    x = with_rank(x, 4)
    for axis, amounts in enumerate([(lp3, rp3), (lp2, rp2), (lp1, rp1), (lp0, rp0)]):
        before, behind = (zeros(xp, x, axis, amount) for amount in amounts)
        x = xp.concat([before, x, behind], axis=axis) if any(amounts) else x
    return x


@kernel(ops.diag)
def diag(xp: Any, x: Array) -> Array:
    return xp.where(xp.eye(x.shape[-1], dtype=xp.bool), x, 0)  # row i is (0, ... x[i], ... 0)


@kernel(ops.tri)
def tri(xp: Any, x: Array, kind: str) -> Array:
    x = with_rank(x, 4)
    row, column = xp.arange(x.shape[2])[:, None], xp.arange(x.shape[3])[None]
    upper, whole = kind.startswith("upper"), kind.endswith("diag")
    kept = column > row if upper else column < row
    return xp.where(kept | (column == row) if whole else kept, x, 0)


@extended(ops.solve_tri)
def solve_tri(
    xp: Any, solve: Function, a: Array, b: Array, lower: bool, left: bool, unit_diagonal: bool
) -> Array:
    a, b = with_rank(a, 4), with_rank(b, 4)
    if 0 in b.shape:
        return b
    if left:
        return solve(a, b, lower, unit_diagonal)
    turned = xp.matrix_transpose  # the transposed problem has its matrix on the left
    return turned(solve(turned(a), turned(b), not lower, unit_diagonal))
