"""Ops on each element alone."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, pi
from typing import Any

import numpy as np

from backbay import DType, Op, ops

from .kernel_table import Array, kernel


def _gated(y: Array, up: Array | None) -> Array:
    return y if up is None else y * up.reshape(y.shape)


# NumPy has no error function; this calls C's for each element, without a loop in Python.
_erfc = np.frompyfunc(erfc, 1, 1)


@kernel(ops.sigmoid)
def sigmoid(x: Array) -> Array:
    # e^-|x| cannot overflow, on either side.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _compute_by(function: Callable[[Array], Array], op: Op[Any, Any]) -> None:
    """Register the kernel of an op that is one of NumPy's functions."""

    @kernel(op)
    def computed(x: Array) -> Array:
        return function(x)


_compute_by(np.negative, ops.neg)
_compute_by(np.square, ops.sqr)
_compute_by(np.sqrt, ops.sqrt)
_compute_by(np.exp, ops.exp)
_compute_by(np.sin, ops.sin)
_compute_by(np.cos, ops.cos)
_compute_by(np.tanh, ops.tanh)


@kernel(ops.relu)
def relu(x: Array, up: Array | None = None) -> Array:
    return _gated(np.maximum(x, 0), up)


@kernel(ops.silu)
def silu(x: Array, up: Array | None = None) -> Array:
    return _gated(x * sigmoid(x), up)


@kernel(ops.gelu)
def gelu(x: Array, up: Array | None = None) -> Array:
    # (1 + tanh(z)) / 2 is sigmoid(2 z), which loses nothing where tanh(z) is near -1.
    return _gated(x * sigmoid(2 * np.sqrt(2 / pi) * (x + 0.044715 * x**3)), up)


@kernel(ops.gelu_erf)
def gelu_erf(x: Array) -> Array:
    return x * np.asarray(_erfc(-x / np.sqrt(2)), x.dtype) / 2


@kernel(ops.quick_gelu)
def quick_gelu(x: Array, up: Array | None = None) -> Array:
    return _gated(x * sigmoid(1.702 * x), up)


@kernel(ops.swiglu)
def swiglu(x: Array, up: Array, alpha: float, limit: float) -> Array:
    gate = np.minimum(x, limit)
    return _gated(gate * sigmoid(alpha * gate), np.clip(up, -limit, limit) + 1)


@kernel(ops.softplus)
def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


@kernel(ops.clamp)
def clamp(x: Array, min: float, max: float) -> Array:
    return np.clip(x, min, max)


@kernel(ops.scale)
def scale(x: Array, s: float) -> Array:
    return x * s


@kernel(ops.fill)
def fill(x: Array, value: float) -> Array:
    return np.full_like(x, value)


@kernel(ops.cast)
def cast(x: Array, dtype: DType) -> Array:
    return x  # storing it converts
