"""Writes, straight into the memory of leaves, and the reading of rows."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..library.abi import Ptr
from .builder import Builder, four
from .kernel_table import kernel


@kernel(ops.copy)
def copy(g: Builder, x: Node, dst: Node) -> Ptr:
    target, source = g.raw(dst), g.raw(x)
    if x.storage is dst.storage:
        source = g.call("cont", source)  # all of it is read before any of it is overwritten
    if four(x) != four(dst):
        # Blocks do not survive a change of shape unless rows stay whole; floats do.
        keeps = x.dtype is dst.dtype or not x.dtype.is_quantized
        source = g.contiguous(source if keeps else g.cast(source, DType.F32))
        source = g.reshape(source, *four(dst))
    return g.call("cpy", g.cast(source, dst.dtype), target)


@kernel(ops.set_rows)
def set_rows(g: Builder, x: Node, src: Node, ids: Node) -> Ptr:
    target, overlaps = g.raw(x), src.storage is x.storage
    if not x.dtype.is_integer:
        rows = g.rows(src, DType.F32)
        return g.call("set_rows", target, g.call("cont", rows) if overlaps else rows, g.raw(ids))
    # Integers move as the bits of floats, which set_rows leaves alone.
    words = x.dtype.type_size // 4
    (wide, *ne), nb = four(x), tuple(target.nb)
    bits = g.view(target, DType.F32, (wide * words, *ne), (4, *nb[1:]), target.view_offs)
    numbers = g.cast(g.raw(src), x.dtype)
    numbers = g.call("cont", numbers) if overlaps else g.contiguous(numbers)
    (wide, *ne) = four(src)
    return g.call("set_rows", bits, g.bitcast(numbers, DType.F32, (wide * words, *ne)), g.raw(ids))


@kernel(ops.rows)
def rows(g: Builder, x: Node, ids: Node) -> Ptr:
    table, places = g.rows(x), g.raw(ids)
    ne, nb = list(four(x)), list(table.nb)
    for n in (2, 3):
        if ne[n] != ids.dim(n - 1):  # one slice serves all: a step of 0 reads it again and again
            ne[n], nb[n] = ids.dim(n - 1), 0
    if ne != list(table.ne):
        table = g.view(table, x.dtype, ne, nb, table.view_offs)
    return g.call("get_rows", table, places)
