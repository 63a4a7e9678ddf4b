"""Rows picked by ids."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..library.abi import Ptr
from ..lowering.builder import Builder
from ..lowering.wide_rows import picked
from ..tensors.layouts import four
from .kernel_table import kernel


@kernel(ops.rows)
def rows(g: Builder, x: Node, ids: Node) -> Ptr:
    table, places = g.rows(x), g.raw(ids)
    ne, nb = list(four(x)), list(table.nb)
    for n in (2, 3):
        if ne[n] != ids.dim(n - 1):  # one slice serves all: with a stride of 0 it is read repeatedly
            ne[n], nb[n] = ids.dim(n - 1), 0
    if ne != list(table.ne):
        table = g.view(table, x.dtype, ne, nb, table.view_offs)
    return picked(g, table, places)


def same_rows_of_slices(g: Builder, x: Ptr, places: Ptr) -> Ptr:
    """The same rows of each slice of a contiguous (n, count, slices)."""
    ids = g.view(places, DType.I32, (places.ne[0], x.ne[2], 1, 1), (4, 0, 0, 0), 0)
    return g.call("get_rows", x, ids)
