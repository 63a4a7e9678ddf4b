"""Rows by number, read and written, and copies into a state."""

from __future__ import annotations

from onnx import TensorProto

from backbay import DType, ops

from ..lowering.emitter import AnySize
from ..lowering.lowering import Lowering
from ..lowering.operand import Operand
from ..weights.quantized import is_packed, packed_rows
from .table import kernel


@kernel(ops.rows)
def rows(b: Lowering, x: Operand, ids: Operand) -> str:
    n, count = x.dim(0), x.dim(1)
    wanted = ids.stored if ids.rank else b.ranked(ids.stored, 0, 1)
    if x.dim(2).same(1) and x.dim(3).same(1):
        if is_packed(x):
            return packed_rows(b, x, wanted, max(ids.rank, 1))
        y = b.add("Gather", b.shaped(x.stored, [n, count]), wanted)
    else:
        y = _from_slices(b, x, ids)
    return b.cast(y, x.dtype, x.dtype if x.dtype.is_integer else DType.F32)


def _from_slices(b: Lowering, x: Operand, ids: Operand) -> str:
    """Each slice of x has its own rows: they are counted through all slices."""
    n, count, xa, xb = x.dims(4)
    a, slices_b = ids.dim(1), ids.dim(2)
    step_a: AnySize = count if xa.same(a) else 0
    step_b: AnySize = count * xa if xb.same(slices_b) else 0
    extents: list[AnySize] = [1, a, slices_b]
    steps: list[AnySize] = [0, step_a, step_b]
    base = b.grid(0, extents[: ids.rank], steps[: ids.rank])
    wanted = b.add("Add", b.cast_to(ids.stored, TensorProto.INT64), base)
    return b.add("Gather", b.shaped(x.stored, [n, count * xa * xb]), wanted)


@kernel(ops.copy)
def copy(b: Lowering, x: Operand, dst: Operand) -> str:
    value = b.cast(x.stored, x.dtype, dst.dtype)
    b.write(dst.node, value)
    return ""


@kernel(ops.set_rows)
def set_rows(b: Lowering, x: Operand, src: Operand, ids: Operand) -> str:
    """One scatter of whole rows; where rows are not bound as such, of their pieces."""
    state, symbols, target = b.state_of(x.node), b.symbols, x.node
    step, places = state.rows(symbols.stride(target, 1)), src.dims(4)[1:]  # (k, a, b)
    value = b.cast(src.stored, src.dtype, x.dtype)
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
    b.scatter(target, b.shaped(index, [1, -1]), value, b.product(src.dims()))
    return ""
