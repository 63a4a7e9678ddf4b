"""Arithmetic on two tensors, the second repeated to the first."""

from __future__ import annotations

from backbay import Node, ops

from ..lowering.kernel_view import Lowering, Operand
from .kernel_table import kernel


def _arithmetic(b: Lowering, op: str, x: Operand, t2: Operand) -> str:
    return b.add(op, x.floats, b.repeated(t2.floats, t2.dims(), x.dims()))


def _repeated_operand(node: Node) -> int:
    """The second operand, where ONNX does not repeat it by itself."""
    second = node.operands[1]
    fits = all(second.dim(n) in (1, node.dim(n)) for n in range(node.rank))
    return 0 if fits else 4 * node.size


@kernel(ops.add, working_memory=_repeated_operand)
def add(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Add", x, t2)


@kernel(ops.sub, working_memory=_repeated_operand)
def sub(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Sub", x, t2)


@kernel(ops.mul, working_memory=_repeated_operand)
def mul(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Mul", x, t2)


@kernel(ops.div, working_memory=_repeated_operand)
def div(b: Lowering, x: Operand, t2: Operand) -> str:
    return _arithmetic(b, "Div", x, t2)
