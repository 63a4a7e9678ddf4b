"""The class of the backend."""

from collections.abc import Sequence
from typing import Any

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
        """XLA copies f16 and bf16 before it converts them."""
        copied = sum(operand.nbytes for operand in node.operands if operand.dtype in HALVES)
        return super().working_memory(node) + copied
