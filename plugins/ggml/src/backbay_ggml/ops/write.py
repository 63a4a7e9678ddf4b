"""Writes, straight into the memory of leaves."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..library.abi import Ptr
from ..lowering.builder import Builder
from ..lowering.wide_rows import put
from ..tensors.layouts import four
from .kernel_table import kernel


@kernel(ops.copy)
def copy(g: Builder, x: Node, dst: Node) -> Ptr:
    target, source = g.raw(dst), g.raw(x)
    if x.storage is dst.storage:
        source = g.call("cont", source)  # read all before anything is overwritten
    if four(x) != four(dst):
        # Quantized blocks cannot change their shape as floats can, unless the bytes are only moved.
        keeps = x.dtype is dst.dtype or not x.dtype.is_quantized
        source = g.contiguous(source if keeps else g.cast(source, DType.F32))
        source = g.reshape(source, *four(dst))
    return g.call("cpy", g.cast(source, dst.dtype), target)


@kernel(ops.set_rows)
def set_rows(g: Builder, x: Node, src: Node, ids: Node) -> Ptr:
    target, overlaps = g.raw(x), src.storage is x.storage
    if not x.dtype.is_integer:
        rows = g.rows(src, DType.F32)
        return put(g, target, g.call("cont", rows) if overlaps else rows, g.raw(ids))
    # Integers move as the bits of floats, because set_rows converts f32 to f32 without a change.
    words = x.dtype.type_size // 4
    (wide, *ne), nb = four(x), tuple(target.nb)
    bits = g.view(target, DType.F32, (wide * words, *ne), (4, *nb[1:]), target.view_offs)
    numbers = g.cast(g.raw(src), x.dtype)
    numbers = g.call("cont", numbers) if overlaps else g.contiguous(numbers)
    (wide, *ne) = four(src)
    return g.call("set_rows", bits, g.bitcast(numbers, DType.F32, (wide * words, *ne)), g.raw(ids))
