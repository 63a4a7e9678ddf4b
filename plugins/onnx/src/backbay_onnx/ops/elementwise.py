"""Ops on each element alone, in float32."""

from __future__ import annotations

from math import inf, pi, sqrt
from typing import Any

import numpy as np

from backbay import DType, Node, Op, UnsupportedOpError, ops
from backbay_native import GATES

from ..lowering.kernel_view import Lowering, Operand
from ..memory.working_memory import nothing, results, times
from ..session.native import DOMAIN
from .kernel_table import kernel


def multiply_up(b: Lowering, y: str, x: Operand, up: Operand | None) -> str:
    return y if up is None else b.add("Mul", y, up.of_rank(x.rank))


def times_sigmoid(b: Lowering, x: str, of: str) -> str:
    """x * exp(min(of, 0)) / (1 + exp(-|of|)): it cannot overflow. ONNX Runtime's own sigmoid is 0 below -18."""
    share = b.add("Add", b.add("Exp", b.add("Neg", b.add("Abs", of))), b.number(1))
    return b.add("Div", b.add("Mul", x, b.add("Exp", _below_zero(b, of))), share)


def _below_zero(b: Lowering, x: str) -> str:
    """min(x, 0), which keeps NaN."""
    zero = b.number(0)
    return b.add("Min", x, zero) if b.has("Min") else b.add("Where", b.add("Greater", x, zero), zero, x)


def multiply_by(b: Lowering, x: str, factor: float) -> str:
    return b.add("Mul", x, b.number(factor))


def _lower_to(node: str, op: Op[Any, Any]) -> None:
    """Register the kernel of an op that is one node of ONNX."""

    @kernel(op, working_memory=nothing)
    def lowered(b: Lowering, x: Operand) -> str:
        return b.add(node, x.floats)


_lower_to("Neg", ops.neg)
_lower_to("Sqrt", ops.sqrt)
_lower_to("Exp", ops.exp)
_lower_to("Sin", ops.sin)
_lower_to("Cos", ops.cos)
_lower_to("Tanh", ops.tanh)


@kernel(ops.softplus, working_memory=nothing)
def softplus(b: Lowering, x: Operand) -> str:
    return softplus_of(b, x.floats)


def softplus_of(b: Lowering, x: str) -> str:
    """max(x, 0) + log(1 + exp(-|x|)). In plain nodes the logarithm is a series: 1 + exp(-|x|) would lose what is small."""
    if not b.settings.plain:
        return b.add("Softplus", x)
    power = b.add("Exp", b.add("Neg", b.add("Abs", x)))
    part = b.add(
        "Div", power, b.add("Add", power, b.number(2))
    )  # log(1 + power) = 2 artanh(part), at most 1/3
    square, series = b.add("Mul", part, part), b.number(1 / 17)
    for odd in range(15, 0, -2):
        series = b.add("Add", b.add("Mul", series, square), b.number(1 / odd))
    return b.add("Add", b.add("Max", x, b.number(0)), multiply_by(b, b.add("Mul", series, part), 2))


@kernel(ops.sqr, working_memory=nothing)
def sqr(b: Lowering, x: Operand) -> str:
    return b.add("Mul", x.floats, x.floats)


@kernel(ops.sigmoid, working_memory=times(2, results))
def sigmoid(b: Lowering, x: Operand) -> str:
    return times_sigmoid(b, b.number(1), x.floats)


def _gate(node: Node) -> int:
    """The gate before it is multiplied with the second operand, if there is one."""
    return 4 * node.size if len(node.operands) > 1 else 0


@kernel(ops.relu, working_memory=_gate)
def relu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return multiply_up(b, b.add("Relu", x.floats), x, up)


@kernel(ops.silu, working_memory=times(2, results))
def silu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    if b.native.has(GATES):
        return b.add("Silu", x.floats, "" if up is None else up.of_rank(x.rank), domain=DOMAIN)
    return multiply_up(b, times_sigmoid(b, x.floats, x.floats), x, up)


@kernel(ops.gelu, working_memory=_gate)
def gelu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return multiply_up(b, _gelu(b, x, "tanh"), x, up)


@kernel(ops.gelu_erf, working_memory=nothing)
def gelu_erf(b: Lowering, x: Operand) -> str:
    return _gelu(b, x, "none")


def _gelu(b: Lowering, x: Operand, approximate: str) -> str:
    """CUDA refuses a number without dimensions."""
    if b.settings.plain:
        return _plain_gelu(b, x.floats, approximate)
    rank = max(x.rank, 1)
    return b.ranked(b.add("Gelu", x.of_rank(rank), approximate=approximate), rank, x.rank)


def _plain_gelu(b: Lowering, x: str, approximate: str) -> str:
    if approximate == "none":
        share = b.add("Add", b.add("Erf", multiply_by(b, x, sqrt(0.5))), b.number(1))
        return multiply_by(b, b.add("Mul", x, share), 0.5)
    cube = b.add("Mul", b.add("Mul", x, x), x)
    inner = b.add("Add", x, multiply_by(b, cube, 0.044715))
    return times_sigmoid(b, x, multiply_by(b, inner, 2 * sqrt(2 / pi)))  # (1 + tanh(y)) / 2 is sigmoid(2 y)


@kernel(ops.quick_gelu, working_memory=times(2, results))
def quick_gelu(b: Lowering, x: Operand, up: Operand | None = None) -> str:
    return multiply_up(b, times_sigmoid(b, x.floats, multiply_by(b, x.floats, 1.702)), x, up)


@kernel(ops.swiglu, working_memory=times(3, results))
def swiglu(b: Lowering, x: Operand, up: Operand, alpha: float, limit: float) -> str:
    gate = b.add("Min", x.floats, b.number(limit))
    gate = times_sigmoid(b, gate, multiply_by(b, gate, alpha))
    return b.add("Mul", gate, b.add("Add", _clipped(b, up.of_rank(x.rank), -limit, limit), b.number(1)))


@kernel(ops.clamp, working_memory=nothing)
def clamp(b: Lowering, x: Operand, min: float, max: float) -> str:
    return _clipped(b, x.floats, min, max)


def _clipped(b: Lowering, x: str, low: float, high: float) -> str:
    x = b.add("Max", x, b.number(low)) if low != -inf else x
    return b.add("Min", x, b.number(high)) if high != inf else x


@kernel(ops.scale, working_memory=nothing)
def scale(b: Lowering, x: Operand, s: float) -> str:
    return multiply_by(b, x.floats, s)


@kernel(ops.fill, working_memory=nothing)
def fill(b: Lowering, x: Operand, value: float) -> str:
    kinds = {DType.I32: np.int32, DType.I64: np.int64}
    number = np.array(value, kinds.get(x.dtype, np.float32))
    return b.filled(number, x.dims())


@kernel(ops.cast, working_memory=nothing)
def cast(b: Lowering, x: Operand, dtype: DType) -> str:
    if dtype.is_quantized:
        raise UnsupportedOpError(f"cast: {x.node}: backend 'onnx' cannot quantize to {dtype}")
    if dtype.is_float:
        return x.floats
    return b.cast(x.stored, x.dtype, dtype)
