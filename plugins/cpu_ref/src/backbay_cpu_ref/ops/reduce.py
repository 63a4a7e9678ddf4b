"""Reductions over dimension 0, the last axis."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel


@kernel(ops.mean)
def mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) / np.float64(x.shape[-1])  # 0 / 0, not a warning, for an empty row


@kernel(ops.sum_rows)
def sum_rows(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True)


@kernel(ops.variance)
def variance(x: Array) -> Array:
    return mean((x - mean(x)) ** 2)


@kernel(ops.stddev)
def stddev(x: Array) -> Array:
    return np.sqrt(variance(x))


@kernel(ops.cumsum)
def cumsum(x: Array) -> Array:
    return x.cumsum(axis=-1)
