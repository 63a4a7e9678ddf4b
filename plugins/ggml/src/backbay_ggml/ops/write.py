"""Writes, straight into the memory of leaves."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..library.abi import Ptr, dtype_of
from ..lowering.builder import GgmlBuilder, kernel
from ..tensors.tensor_builder import four_dimensions
from .index import put_rows


@kernel(ops.copy)
def copy(g: GgmlBuilder, x: Node, dst: Node) -> Ptr:
    if dst.dtype.is_quantized and dst.dtype.type_size % 2 == 0 and g.fails(f"into CPY {dst.dtype}"):
        return _copy_in_words(g, x, dst)
    target, source = g.raw(dst), g.raw(x)
    if x.storage is dst.storage:
        source = g.call("cont", source)  # read all before anything is overwritten
    if four_dimensions(x) != four_dimensions(dst):
        # Quantized blocks cannot change their shape as floats can, unless the bytes are only moved.
        keeps = x.dtype is dst.dtype or not x.dtype.is_quantized
        source = g.contiguous(source if keeps else g.cast(source, DType.F32))
        source = g.reshape(source, *four_dimensions(dst))
    return g.call("cpy", g.cast(source, dst.dtype), target)


def _copy_in_words(g: GgmlBuilder, x: Node, dst: Node) -> Ptr:
    """A copy of blocks as numbers of 16 bits, for a device that moves blocks to or from wrong places."""
    if x.dtype is dst.dtype:
        source = g.call("cont", _words(g, g.raw(x)))  # read all before anything is overwritten
    else:
        floats = g.reshape(g.contiguous(g.cast(g.raw(x), DType.F32)), *four_dimensions(dst))
        source = _words(g, g.cast(floats, dst.dtype))
    target = _words(g, g.raw(dst))
    return g.call("cpy", g.reshape(source, *target.ne), target)


def _words(g: GgmlBuilder, blocks: Ptr) -> Ptr:
    """A view of blocks, which begin at even addresses, as numbers of 16 bits; no bit of them changes when they move."""
    dtype = dtype_of(blocks)
    row = blocks.ne[0] // dtype.block_size * dtype.type_size // 2
    return g.view(blocks, DType.F16, (row, *list(blocks.ne)[1:]), (2, *list(blocks.nb)[1:]), blocks.view_offs)


@kernel(ops.set_rows)
def set_rows(g: GgmlBuilder, x: Node, src: Node, ids: Node) -> Ptr:
    target, overlaps = g.raw(x), src.storage is x.storage
    if not x.dtype.is_integer:
        rows = g.rows(src, DType.F32)
        rows = g.rows_to_write(g.call("cont", rows) if overlaps else rows, ids)
        return put_rows(g, target, rows, g.raw(ids))
    # Integers move as the bits of floats, because set_rows converts f32 to f32 without a change.
    words = x.dtype.type_size // 4
    (wide, *ne), nb = four_dimensions(x), tuple(target.nb)
    bits = g.view(target, DType.F32, (wide * words, *ne), (4, *nb[1:]), target.view_offs)
    numbers = g.cast(g.raw(src), x.dtype)
    numbers = g.call("cont", numbers) if overlaps else g.contiguous(numbers)
    (wide, *ne) = four_dimensions(src)
    rows = g.rows_to_write(g.bitcast(numbers, DType.F32, (wide * words, *ne)), ids)
    return g.call("set_rows", bits, rows, g.raw(ids))
