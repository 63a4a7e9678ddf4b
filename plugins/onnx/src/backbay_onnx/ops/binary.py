"""Arithmetic on two tensors, the second repeated to the first."""

from __future__ import annotations

from typing import Any

from backbay import Node, Op, ops

from ..lowering.kernel_view import Lowering, Operand
from .kernel_table import kernel


def _repeated_operand(node: Node) -> int:
    """The second operand, where ONNX does not repeat it by itself."""
    second = node.operands[1]
    fits = all(second.dim(n) in (1, node.dim(n)) for n in range(node.rank))
    return 0 if fits else 4 * node.size


def _lower_to(node: str, op: Op[Any, Any]) -> None:
    @kernel(op, working_memory=_repeated_operand)
    def lowered(b: Lowering, x: Operand, t2: Operand) -> str:
        return b.add(node, x.floats, b.repeated(t2.floats, t2.dims(), x.dims()))


_lower_to("Add", ops.add)
_lower_to("Sub", ops.sub)
_lower_to("Mul", ops.mul)
_lower_to("Div", ops.div)
