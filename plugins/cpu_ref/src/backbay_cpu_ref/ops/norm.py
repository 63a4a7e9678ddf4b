"""Softmax and the norms over dimension 0, the last axis."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel
from .reduce import mean


@kernel(ops.softmax)
def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=-1, keepdims=True)


@kernel(ops.layer_norm)
def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    centred = x - mean(x)
    y = centred / np.sqrt(mean(centred**2) + eps)
    return _affine(y, weight, bias)


@kernel(ops.rms_norm)
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    return _affine(x / np.sqrt(mean(x**2) + eps), weight, None)


@kernel(ops.l2_norm)
def l2_norm(x: Array, eps: float = 1e-12) -> Array:
    return x / np.maximum(np.sqrt((x**2).sum(axis=-1, keepdims=True)), eps)


def _affine(y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else y * weight.reshape(-1)
    return y if bias is None else y + bias.reshape(-1)
