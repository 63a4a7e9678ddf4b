"""Arithmetic on two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backbay import Op, ops

from .kernel_table import Array, kernel


def repeat_to_shape(t2: Array, shape: tuple[int, ...]) -> Array:
    """t2 repeated modulo to a shape; NumPy broadcasts extents of 1 by itself, but drops no leading axes of 1."""
    t2 = t2.reshape((1,) * (len(shape) - t2.ndim) + t2.shape[max(0, t2.ndim - len(shape)) :])
    times = [
        1 if have == 1 else want // have if have else 1 for want, have in zip(shape, t2.shape, strict=True)
    ]
    return np.tile(t2, times)


def _compute_by(function: Callable[[Array, Array], Array], op: Op[Any, Any]) -> None:
    @kernel(op)
    def computed(x: Array, t2: Array) -> Array:
        return function(x, repeat_to_shape(t2, x.shape))


_compute_by(np.add, ops.add)
_compute_by(np.subtract, ops.sub)
_compute_by(np.multiply, ops.mul)
_compute_by(np.divide, ops.div)
