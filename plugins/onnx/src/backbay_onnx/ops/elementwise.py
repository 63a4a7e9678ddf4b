"""Ops on each element alone, in float32."""

from __future__ import annotations

from math import inf

import numpy as np

from backbay import DType, UnsupportedOpError, ops

from ..lowering.lowering import Lowering
from ..lowering.operand import Operand
from .table import kernel


def gated(b: Lowering, y: str, x: Operand, up: Operand | None) -> str:
    return y if up is None else b.add("Mul", y, up.of_rank(x.rank))


def times_sigmoid(b: Lowering, x: str, of: str) -> str:
    """x * exp(min(of, 0)) / (1 + exp(-|of|)): nothing overflows. ONNX Runtime's own sigmoid is 0 below -18."""
    share = b.add("Add", b.add("Exp", b.add("Neg", b.add("Abs", of))), b.number(1))
    return b.add("Div", b.add("Mul", x, b.add("Exp", b.add("Min", of, b.number(0)))), share)


def scaled(b: Lowering, x: str, factor: float) -> str:
    return b.add("Mul", x, b.number(factor))


@kernel(ops.neg)
def neg(b: Lowering, x: Operand) -> str:
    return b.add("Neg", x.floats)


@kernel(ops.sqr)
def sqr(b: Lowering, x: Operand) -> str:
    return b.add("Mul", x.floats, x.floats)


@kernel(ops.sqrt)
def sqrt(b: Lowering, x: Operand) -> str:
    return b.add("Sqrt", x.floats)


@kernel(ops.exp)
def exp(b: Lowering, x: Operand) -> str:
    return b.add("Exp", x.floats)


@kernel(ops.sin)
def sin(b: Lowering, x: Operand) -> str:
    return b.add("Sin", x.floats)


@kernel(ops.cos)
def cos(b: Lowering, x: Operand) -> str:
    return b.add("Cos", x.floats)


@kernel(ops.tanh)
def tanh(b: Lowering, x: Operand) -> str:
    return b.add("Tanh", x.floats)


@kernel(ops.sigmoid)
def sigmoid(b: Lowering, x: Operand) -> str:
    return times_sigmoid(b, b.number(1), x.floats)


@kernel(ops.relu)
def relu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return gated(b, b.add("Relu", x.floats), x, up)


@kernel(ops.silu)
def silu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return gated(b, times_sigmoid(b, x.floats, x.floats), x, up)


@kernel(ops.gelu)
def gelu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return gated(b, b.add("Gelu", x.floats, approximate="tanh"), x, up)


@kernel(ops.gelu_erf)
def gelu_erf(b: Lowering, x: Operand) -> str:
    return b.add("Gelu", x.floats, approximate="none")


@kernel(ops.quick_gelu)
def quick_gelu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return gated(b, times_sigmoid(b, x.floats, scaled(b, x.floats, 1.702)), x, up)


@kernel(ops.swiglu)
def swiglu(b: Lowering, x: Operand, up: Operand, alpha: float, limit: float) -> str:
    gate = b.add("Min", x.floats, b.number(limit))
    gate = times_sigmoid(b, gate, scaled(b, gate, alpha))
    return b.add("Mul", gate, b.add("Add", _clipped(b, up.of_rank(x.rank), -limit, limit), b.number(1)))


@kernel(ops.softplus)
def softplus(b: Lowering, x: Operand) -> str:
    return b.add("Softplus", x.floats)


@kernel(ops.clamp)
def clamp(b: Lowering, x: Operand, min: float, max: float) -> str:
    return _clipped(b, x.floats, min, max)


def _clipped(b: Lowering, x: str, low: float, high: float) -> str:
    x = b.add("Max", x, b.number(low)) if low != -inf else x
    return b.add("Min", x, b.number(high)) if high != inf else x


@kernel(ops.scale)
def scale(b: Lowering, x: Operand, s: float) -> str:
    return b.add("Mul", x.floats, b.number(s))


@kernel(ops.fill)
def fill(b: Lowering, x: Operand, value: float) -> str:
    kinds = {DType.I32: np.int32, DType.I64: np.int64}
    number = np.array(value, kinds.get(x.dtype, np.float32))
    return b.filled(number, x.dims())


@kernel(ops.cast)
def cast(b: Lowering, x: Operand, dtype: DType) -> str:
    if dtype.is_quantized:
        raise UnsupportedOpError(f"cast: {x.node}: backend 'onnx' cannot quantize to {dtype}")
    if dtype.is_float:
        return x.floats
    return b.cast(x.stored, x.dtype, dtype)
