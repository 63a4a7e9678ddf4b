"""Copies of rows by native code: ggml gives whole rows to threads, and joins tensors element by element."""

from __future__ import annotations

from backbay import DType

from ..library.abi import NULL, Ptr, dtype_of, ffi
from ..library.native import EVERY_THREAD
from .builder import Builder

FEW = 4  # rows; with more, ggml's threads share them well enough
WIDE = 1 << 13  # elements of a row that several threads copy
SHORT = 64  # bytes of a row that is not worth a call of memcpy


def joined(g: Builder, first: Ptr, second: Ptr, dim: int) -> Ptr:
    """Two tensors of the same dtype side by side; the elements of their rows adjoin."""
    ne, unit = list(first.ne), dtype_of(first).type_size
    if g.library.rows is None or not g.on_cpu or ne[0] * unit < SHORT:
        return g.call("concat", first, second, dim)
    ne[dim] += second.ne[dim]
    data = ffi.cast("void *", 4 * unit + dim)
    return g.custom(g.library.rows.join, ne, [first, second], data, dtype=dtype_of(first))


def picked(g: Builder, table: Ptr, ids: Ptr) -> Ptr:
    """Rows of a tensor, by ids."""
    rows = g.library.rows
    if rows is None or not _fits(g, table, ids, table.ne[0]):
        return g.call("get_rows", table, ids)
    return g.custom(rows.pick, (table.ne[0], ids.ne[0], 1, 1), [table, ids])


def put(g: Builder, target: Ptr, rows: Ptr, ids: Ptr) -> Ptr:
    """The target with rows written over its own, by ids."""
    native = g.library.rows
    if native is None or not _fits(g, target, ids, rows.ne[0]) or dtype_of(rows) is not DType.F32:
        return g.call("set_rows", target, rows, ids)
    return g.call("custom_inplace", target, [rows, ids], 2, native.put, EVERY_THREAD, NULL)


def _fits(g: Builder, matrix: Ptr, ids: Ptr, width: int) -> bool:
    """Whether few wide rows of an f32 matrix are copied on the CPU."""
    return (
        g.on_cpu
        and dtype_of(matrix) is DType.F32
        and tuple(matrix.ne)[2:] == (1, 1) == tuple(ids.ne)[2:]
        and ids.ne[1] == 1
        and ids.ne[0] <= FEW
        and width >= WIDE
    )
