"""Products of quantized weights by native code: columns become codes once, for all weights that they meet.

A column's result does not depend on the number of columns. So one column takes this way, too: ggml's code for it waits
for memory just as long.
"""

from __future__ import annotations

from backbay import DType, Node

from ..library.abi import NULL, Ptr
from ..library.native import ENTRY, MOST_ALONE
from ..tensors.layouts import four
from ..weights.arrangements import REPACK
from .builder import Builder

BLOCK = 32  # numbers of a column with one scale


def multiply_native(g: Builder, w: Node, x: Node) -> Ptr | None:
    """The product of two nodes; None if native code does not take them."""
    native, count = g.library.products, x.size // x.dim(0)
    if native is None or not g.on_cpu or w.dtype.name not in native.formats:
        return None
    weights = g.product(w) or g.rows(w)
    format_ = _format(g, w, weights)
    if format_ not in native.formats:
        return None
    columns = _columns(g, x)
    number, shape = native.number(format_), (w.dim(1), count, 1, 1)
    if native.alone is not None and count == 1 and x.dim(0) <= MOST_ALONE:
        product = g.product_op(native.alone, shape, [_alias(g, w, weights), columns], number)
        return g.reshape(product, w.dim(1), *four(x)[1:])

    def encode() -> Ptr:
        matrix = g.reshape(columns, x.dim(0), count)
        entries = x.dim(0) // BLOCK * ENTRY // DType.F32.type_size, count, 1, 1
        return g.custom(native.columns, entries, [matrix], number)

    codes = g.once(columns, f"codes for {w.dtype}", encode)
    product = g.product_op(native.products, shape, [_alias(g, w, weights), codes], number)
    return g.reshape(product, w.dim(1), *four(x)[1:])


def _format(g: Builder, w: Node, weights: Ptr) -> str:
    """The format of a matrix of weights, as they lie; empty if there is none."""
    if four(w)[2:] != (1, 1):
        return ""
    if weights.extra == NULL:
        return w.dtype.name
    kind = g.arrangement(w)
    return f"{w.dtype.name}_X8" if kind is not None and kind.name == REPACK and w.dtype in kind.native else ""


def _columns(g: Builder, x: Node) -> Ptr:
    """The columns in f32: all of them adjoin, if they stand in several matrices."""
    return g.rows(x, DType.F32) if four(x)[2:] == (1, 1) else g.floats(x)


def _alias(g: Builder, w: Node, weights: Ptr) -> Ptr:
    """Rearranged weights as a tensor of no buffer: ggml runs only its own products on their buffer."""
    if weights.extra == NULL:
        return weights
    return g.once(weights, "without a buffer", lambda: g.without_buffer(weights))
