"""Ops on each element alone, and arithmetic on two tensors."""

from __future__ import annotations

from typing import Any

from .. import ops
from .table import Array, extended, kernel, with_rank

kernel(ops.sqrt)(lambda xp, x: xp.sqrt(x))
kernel(ops.exp)(lambda xp, x: xp.exp(x))
kernel(ops.sin)(lambda xp, x: xp.sin(x))
kernel(ops.cos)(lambda xp, x: xp.cos(x))
kernel(ops.tanh)(lambda xp, x: xp.tanh(x))
kernel(ops.neg)(lambda xp, x: -x)
kernel(ops.sqr)(lambda xp, x: x * x)
kernel(ops.scale)(lambda xp, x, s: x * s)
kernel(ops.softplus)(lambda xp, x: xp.logaddexp(xp.zeros_like(x), x))
extended(ops.gelu_erf)(lambda xp, erfc, x: x * erfc(-x * 0.5**0.5) / 2)
kernel(ops.cast)(lambda xp, x, dtype: x)  # storing it converts


@kernel(ops.sigmoid)
def sigmoid(xp: Any, x: Array) -> Array:
    small = xp.exp(-xp.abs(x))  # cannot overflow, on either side
    return xp.where(x >= 0, 1.0, small) / (1 + small)


@kernel(ops.clamp)
def clamp(xp: Any, x: Array, min: float, max: float) -> Array:
    x = xp.where(x < min, min, x)
    return xp.where(x > max, max, x)


@kernel(ops.fill)
def fill(xp: Any, x: Array, value: float) -> Array:
    return xp.full_like(x, int(value) if xp.isdtype(x.dtype, "integral") else value)


def repeat_to_shape(xp: Any, t2: Array, x: Array) -> Array:
    """The second operand of arithmetic, repeated modulo to the shape of the first; extents of 1 broadcast."""
    t2 = with_rank(t2, x.ndim)
    times = [1 if have == 1 else want // max(have, 1) for want, have in zip(x.shape, t2.shape, strict=True)]
    return xp.tile(t2, tuple(times))


kernel(ops.add)(lambda xp, x, t2: x + repeat_to_shape(xp, t2, x))
kernel(ops.sub)(lambda xp, x, t2: x - repeat_to_shape(xp, t2, x))
kernel(ops.mul)(lambda xp, x, t2: x * repeat_to_shape(xp, t2, x))
kernel(ops.div)(lambda xp, x, t2: x / repeat_to_shape(xp, t2, x))
