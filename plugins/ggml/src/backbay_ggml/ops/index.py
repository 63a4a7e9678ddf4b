"""Rows picked by ids, and copies of rows by native code: ggml gives whole rows to threads, and joins element by element."""

from __future__ import annotations

from backbay import DType, Node, ops
from backbay_native import ROWS

from ..library.abi import NULL, Ptr, dtype_of, ffi
from ..lowering.builder import GgmlBuilder, kernel
from ..tensors.tensor_builder import EVERY_THREAD, four_dimensions

FEW = 4  # rows; with more, ggml's threads share them well enough
WIDE = 1 << 13  # elements of a row that several threads copy
SHORT = 64  # bytes of a row that is not worth a call of memcpy


@kernel(ops.rows)
def rows(g: GgmlBuilder, x: Node, ids: Node) -> Ptr:
    table, places = g.rows(x), g.raw(ids)
    ne, nb = list(four_dimensions(x)), list(table.nb)
    for n in (2, 3):
        if ne[n] != ids.dim(n - 1):  # one slice serves all: with a stride of 0 it is read repeatedly
            ne[n], nb[n] = ids.dim(n - 1), 0
    if ne != list(table.ne):
        table = g.view(table, x.dtype, ne, nb, table.view_offs)
    return pick_rows(g, table, places)


def same_rows_of_slices(g: GgmlBuilder, x: Ptr, places: Ptr) -> Ptr:
    """The same rows of each slice of a contiguous (n, count, slices)."""
    ids = g.view(places, DType.I32, (places.ne[0], x.ne[2], 1, 1), (4, 0, 0, 0), 0)
    return g.call("get_rows", x, ids)


def join_rows(g: GgmlBuilder, first: Ptr, second: Ptr, dim: int) -> Ptr:
    """Two tensors of the same dtype side by side; the elements of their rows adjoin."""
    ne, unit = list(first.ne), dtype_of(first).type_size
    if not g.on_cpu or ne[0] * unit < SHORT or not g.library.native.has(ROWS):
        return g.call("concat", first, second, dim)
    ne[dim] += second.ne[dim]
    data = ffi.cast("void *", 4 * unit + dim)
    return g.custom("join", ne, [first, second], data, dtype=dtype_of(first))


def pick_rows(g: GgmlBuilder, table: Ptr, ids: Ptr) -> Ptr:
    if not _fits(g, table, ids, table.ne[0]):
        return g.call("get_rows", table, ids)
    return g.custom("pick", (table.ne[0], ids.ne[0], 1, 1), [table, ids])


def put_rows(g: GgmlBuilder, target: Ptr, rows: Ptr, ids: Ptr) -> Ptr:
    """The target with rows written over its own, by ids."""
    if dtype_of(rows) is not DType.F32 or not _fits(g, target, ids, rows.ne[0]):
        return g.call("set_rows", target, rows, ids)
    return g.call("custom_inplace", target, [rows, ids], 2, g.library.custom_op("put"), EVERY_THREAD, NULL)


def _fits(g: GgmlBuilder, matrix: Ptr, ids: Ptr, width: int) -> bool:
    """Whether native code copies the rows: few wide rows of an f32 matrix on the CPU."""
    return (
        g.on_cpu
        and dtype_of(matrix) is DType.F32
        and tuple(matrix.ne)[2:] == (1, 1) == tuple(ids.ne)[2:]
        and ids.ne[1] == 1
        and ids.ne[0] <= FEW
        and width >= WIDE
        and g.library.native.has(ROWS)
    )
