"""Writes into a state."""

from __future__ import annotations

from onnx import TensorProto

from backbay import Node, ops

from ..lowering.emitter import AnySize
from ..lowering.kernel_view import Lowering, Operand
from .kernel_table import kernel


def _rows_to_write(node: Node) -> int:
    """The rows in the dtype of the state, and once more in memory of their own."""
    source = node.operands[0 if node.op is ops.copy else 1]
    return 2 * source.size * node.dtype.type_size


@kernel(ops.copy, working_memory=_rows_to_write)
def copy(b: Lowering, x: Operand, dst: Operand) -> str:
    b.write(dst.node, x.stored, x.dtype)
    return ""


@kernel(ops.set_rows, working_memory=_rows_to_write)
def set_rows(b: Lowering, x: Operand, src: Operand, ids: Operand) -> str:
    """One scatter of whole rows, or of pieces of rows where the state is not bound as whole rows."""
    state, symbols, target = b.state_of(x.node), b.symbols, x.node
    step, places = state.rows(symbols.stride(target, 1)), src.dims(4)[1:]  # (k, a, b)
    index = b.cast_to(ids.stored, TensorProto.INT64)
    if state.window is not None:
        index = b.add("Sub", index, b.scalar(state.window.first))
    if not step.same(1):
        index = b.add("Mul", index, b.scalar(step))
    simple = state.width == symbols.dim(target, 0) and target.rank <= 2 and symbols.offset(target).same(0)
    if not simple:
        index = b.repeated(index, ids.dims(), places)
        index = b.add("Unsqueeze", index, b.ints(-1))
        steps: list[AnySize] = [
            state.step(target),
            0,
            *[state.rows(symbols.stride(target, n)) for n in (2, 3)],
        ]
        extents: list[AnySize] = [symbols.dim(target, 0) // state.width, 1, *places[1:]]
        index = b.add("Add", index, b.grid(state.rows(symbols.offset(target)), extents, steps))
    index = b.shaped(index, [1, -1])
    b.scatter(target, index, b.in_order(src.node), src.dtype, b.product(src.dims()), ids.node)
    return ""
