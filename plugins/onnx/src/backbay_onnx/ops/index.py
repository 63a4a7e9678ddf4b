"""Rows by number."""

from __future__ import annotations

from onnx import TensorProto

from backbay import DType, Node, ops

from ..lowering.emitter import AnySize
from ..lowering.kernel_view import Lowering, Operand
from .kernel_table import kernel
from .matrix import is_packed, packed_rows


def _unpacked_rows(node: Node) -> int:
    """Of a quantized weight: halves of codes, then numbers."""
    return 3 * 4 * node.size if is_packed(node.operands[0]) else 0


@kernel(ops.rows, working_memory=_unpacked_rows)
def rows(b: Lowering, x: Operand, ids: Operand) -> str:
    n, count = x.dim(0), x.dim(1)
    wanted = ids.stored if ids.rank else b.ranked(ids.stored, 0, 1)
    if x.dim(2).same(1) and x.dim(3).same(1):
        if is_packed(x.node):
            return packed_rows(b, x, wanted, max(ids.rank, 1))
        y = b.add("Gather", b.shaped(x.stored, [n, count]), wanted)
    else:
        y = _from_slices(b, x, ids)
    return b.cast(y, x.dtype, x.dtype if x.dtype.is_integer else DType.F32)


def _from_slices(b: Lowering, x: Operand, ids: Operand) -> str:
    """Each slice of x has its own rows: ids become row numbers in x as one matrix."""
    n, count, xa, xb = x.dims(4)
    a, slices_b = ids.dim(1), ids.dim(2)
    step_a: AnySize = count if xa.same(a) else 0
    step_b: AnySize = count * xa if xb.same(slices_b) else 0
    extents: list[AnySize] = [1, a, slices_b]
    steps: list[AnySize] = [0, step_a, step_b]
    base = b.grid(0, extents[: ids.rank], steps[: ids.rank])
    wanted = b.add("Add", b.cast_to(ids.stored, TensorProto.INT64), base)
    return b.add("Gather", b.shaped(x.stored, [n, count * xa * xb]), wanted)
