"""Arithmetic on two tensors, the second repeated to the first."""

from __future__ import annotations

from backbay import ops

from ..lowering.lowering import Lowering
from ..lowering.operand import Operand
from .table import kernel


def _arithmetic(b: Lowering, op: str, x: Operand, t2: Operand) -> str:
    return b.add(op, x.floats, b.repeated(t2.floats, t2.dims(), x.dims()))


@kernel(ops.add)
def add(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Add", x, t2)


@kernel(ops.sub)
def sub(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Sub", x, t2)


@kernel(ops.mul)
def mul(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Mul", x, t2)


@kernel(ops.div)
def div(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Div", x, t2)
