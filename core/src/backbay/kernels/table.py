"""The tables of kernels over any arrays, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backend.kernels.kernel_table import KernelTable

Array = Any
Function = Callable[..., Any]

kernel = KernelTable(skip=1)
"""Kernels whose first parameter is the module of arrays."""
extended = KernelTable(skip=2)
"""Kernels whose second parameter is a function that the standard lacks."""


def with_rank(x: Array, rank: int) -> Array:
    """x with exactly `rank` axes: leading axes of extent 1 are added or dropped."""
    return x.reshape((1,) * (rank - x.ndim) + tuple(x.shape)[-rank:])


def numbers(xp: Any, values: np.ndarray[Any, Any]) -> Array:
    return xp.asarray(values.astype(np.float32))


def zeros(xp: Any, x: Array, axis: int, extent: int) -> Array:
    """Zeros that lie beside x on an axis."""
    return xp.zeros((*x.shape[:axis], extent, *x.shape[axis + 1 :]), dtype=x.dtype)


def take(xp: Any, x: Array, index: np.ndarray[Any, Any], axis: int) -> Array:
    """The elements of an axis with the numbers in `index`, whose shape takes the place of the axis."""
    found = xp.take(x, xp.asarray(index.reshape(-1)), axis=axis)
    return found.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def solve_rows(xp: Any, a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    """a^-1 b for batches of triangular matrices, row by row; what lies in their other half does not count."""
    count, rows = a.shape[-1], [b[..., :0, :]]
    for n in range(count) if lower else reversed(range(count)):
        solved = xp.concat(rows if lower else rows[::-1], axis=-2)
        known = a[..., n : n + 1, :n] if lower else a[..., n : n + 1, n + 1 :]
        rest = b[..., n : n + 1, :] - known @ solved
        rows.append(rest if unit_diagonal else rest / a[..., n : n + 1, n : n + 1])
    return xp.concat(rows if lower else rows[::-1], axis=-2)


def scan_steps(xp: Any, step: Function, state: Array, sequences: Sequence[Array]) -> tuple[Array, Array]:
    """The last state, and the results of all steps; a step takes the state and an element of each sequence."""
    results = []
    for now in zip(*sequences, strict=True):
        state, result = step(state, now)
        results.append(result)
    return state, xp.stack(results) if results else sequences[0]
