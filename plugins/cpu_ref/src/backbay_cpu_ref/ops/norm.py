"""Softmax, norms and reductions over dimension 0, the last axis."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .table import Array, kernel


@kernel(ops.softmax)
def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=-1, keepdims=True)


@kernel(ops.layer_norm)
def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    centred = x - _mean(x)
    y = centred / np.sqrt(_mean(centred**2) + eps)
    return _affine(y, weight, bias)


@kernel(ops.rms_norm)
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    return _affine(x / np.sqrt(_mean(x**2) + eps), weight, None)


@kernel(ops.l2_norm)
def l2_norm(x: Array, eps: float = 1e-12) -> Array:
    return x / np.maximum(np.sqrt((x**2).sum(axis=-1, keepdims=True)), eps)


@kernel(ops.sum_rows)
def sum_rows(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True)


@kernel(ops.mean)
def mean(x: Array) -> Array:
    return _mean(x)


@kernel(ops.variance)
def variance(x: Array) -> Array:
    return _mean((x - _mean(x)) ** 2)


@kernel(ops.stddev)
def stddev(x: Array) -> Array:
    return np.sqrt(_mean((x - _mean(x)) ** 2))


@kernel(ops.cumsum)
def cumsum(x: Array) -> Array:
    return x.cumsum(axis=-1)


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) / np.float64(x.shape[-1])  # 0 / 0, not a warning, for an empty row


def _affine(y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else y * weight.reshape(-1)
    return y if bias is None else y + bias.reshape(-1)
