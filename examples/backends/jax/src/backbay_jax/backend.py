"""The class of the backend."""

from collections.abc import Sequence
from typing import Any

from backbay import ops
from backbay.plugin import DType, GraphBackend, Node, Op, Precision, Spec

from .engine import ENGINE, HALVES
from .kernels import kernel


class JaxBackend(GraphBackend):
    """XLA on the CPU."""

    contract_version = "1.2"
    kernels = kernel
    engine = ENGINE

    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        return Precision(DType.F32, DType.F32, flushes_subnormals=True)  # XLA reads them as zeros

    def working_memory(self, node: Node) -> int:
        """XLA copies f16 and bf16 before it converts them, and keeps the parts of some kernels."""
        copied = sum(operand.nbytes for operand in node.operands if operand.dtype in HALVES)
        return super().working_memory(node) + copied + 4 * parts(node)


def parts(node: Node) -> int:
    """The elements that a kernel makes: powers, the matrices of chosen experts with their rows, windows of an image."""
    if node.op is ops.softmax:
        return node.size
    if node.op is ops.mulmat_id:
        w, x, ids = node.args
        return int(ids.size * w.dim(0) * w.dim(1) + ids.size * x.dim(0))
    if node.op in (ops.conv2d, ops.conv3d):
        weight = node.args[0]
        kernels = max(weight.dim(3) // (node.args[2] if node.op is ops.conv3d else 1), 1)
        return (node.size // kernels) * (weight.size // kernels)
    return 0
