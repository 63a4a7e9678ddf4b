"""Sorting along dimension 0, the last axis."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from backbay import Node, ops
from backbay.internals import Size

from ..lowering.kernel_view import Lowering, Operand
from .kernel_table import kernel

BELOW_PADDING = 3e38  # more than half of any number


def _sorted(b: Lowering, x: Operand, k: Size, largest: int) -> str:
    """The positions of the first k. NaN counts as -inf: it has no order, and may crash a sort."""
    rank = max(x.rank, 1)
    if k.same(0) or any(extent.same(0) for extent in x.dims()):  # on which some versions of ONNX Runtime die
        return b.cast_to(b.zeros([k, *x.dims()[1:]]), TensorProto.INT32)
    row = x.of_rank(rank)
    numbers = b.add("Where", b.add("IsNaN", row), b.number(-np.inf), row)
    # CUDA pads rows with the largest number, and finds the padding in place of infinities. Of halves, they alone come near.
    if b.resident:
        numbers = b.add("Mul", numbers, b.number(0.5))
        numbers = b.add("Clip", numbers, b.number(-BELOW_PADDING), b.number(BELOW_PADDING))
    positions = b.add_many("TopK", numbers, b.vector([k]), outputs=2, axis=-1, largest=largest, sorted=1)[1]
    return b.cast_to(positions, TensorProto.INT32)


def _sort(node: Node) -> int:
    """The row without NaN, for which Where makes two temporaries; then values, and positions of 64 bits."""
    row = 4 * node.operands[0].size
    return max(3 * row + row // 4, row + 3 * 4 * node.size)


@kernel(ops.top_k, working_memory=_sort)
def top_k(b: Lowering, x: Operand, k: Size) -> str:
    return _sorted(b, x, k, 1)


@kernel(ops.argsort, working_memory=_sort)
def argsort(b: Lowering, x: Operand) -> str:
    return b.ranked(_sorted(b, x, x.dim(0), 0), max(x.rank, 1), x.rank)
