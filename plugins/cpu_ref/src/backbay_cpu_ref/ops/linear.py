"""Diagonals, triangles and triangular systems."""

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel


@kernel(ops.diag)
def diag(x: Array) -> Array:
    x = np.array(x, ndmin=1)
    return np.where(np.eye(x.shape[-1], dtype=bool), x, 0)  # row i is (0, ... x[i], ... 0)


@kernel(ops.tri)
def tri(x: Array, kind: str) -> Array:
    column = np.arange(x.shape[-1] if x.ndim else 1)
    row = column[:, None]
    kept = {
        "lower-diag": column <= row,
        "lower": column < row,
        "upper-diag": column >= row,
        "upper": column > row,
    }
    return np.where(kept[kind], x, 0).reshape(x.shape)


@kernel(ops.solve_tri)
def solve_tri(a: Array, b: Array, lower: bool, left: bool, unit_diagonal: bool) -> Array:
    a, x = np.array(a, ndmin=4), np.array(b, ndmin=4)
    if not left:  # the transposed problem has its matrix on the left
        a, x, lower = a.swapaxes(2, 3), x.swapaxes(2, 3), not lower
    if not lower:  # an upper triangle with rows and columns reversed is a lower one
        a, x = a[..., ::-1, ::-1], x[..., ::-1, :]
    for i in range(a.shape[3]):  # each row needs the rows before it
        known = a[..., i : i + 1, :i] @ x[..., :i, :]
        pivot = 1 if unit_diagonal else a[..., i : i + 1, i : i + 1]
        x[..., i : i + 1, :] = (x[..., i : i + 1, :] - known) / pivot
    x = x if lower else x[..., ::-1, :]
    return (x if left else x.swapaxes(2, 3)).reshape(b.shape)
