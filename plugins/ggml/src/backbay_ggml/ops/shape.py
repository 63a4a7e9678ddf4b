"""Copies in another shape; data that only move keep their bits."""

from __future__ import annotations

from math import prod

from backbay import DType, Node, ops

from ..library.abi import Ptr
from ..library.avoidance import BLOCKS_JOINED
from ..lowering.builder import GgmlBuilder, kernel
from ..tensors.tensor_builder import four_dimensions
from .index import join_rows


@kernel(ops.contiguous)
def contiguous(g: GgmlBuilder, x: Node, *shape: int) -> Ptr:
    return g.reshape(g.call("cont", g.raw(x)), *(shape or x.shape))


@kernel(ops.pad_ext)
def pad_ext(
    g: GgmlBuilder, x: Node, lp0: int, rp0: int, lp1: int, rp1: int, lp2: int, rp2: int, lp3: int, rp3: int
) -> Ptr:
    return g.call("pad_ext", g.floats(x), lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3)


@kernel(ops.concat)
def concat(g: GgmlBuilder, x: Node, t2: Node, dim: int) -> Ptr:
    parts = [node for node in (x, t2) if node.size]
    if len(parts) == 1:
        return g.call("cont", g.raw(parts[0]))
    if not x.dtype.is_quantized or not g.avoids(BLOCKS_JOINED):
        return join_rows(g, g.rows(x), g.rows(t2), dim)
    # ggml moves elements, which a block has many of; so blocks move as bytes.
    made = g.call("concat", _bytes(g, x), _bytes(g, t2), dim)
    ne = tuple(made.ne)
    return g.bitcast(made, x.dtype, (ne[0] // x.dtype.type_size * x.dtype.block_size, *ne[1:]))


def _bytes(g: GgmlBuilder, x: Node) -> Ptr:
    return g.bitcast(g.dense(x), DType.I8, (x.row_nbytes, *four_dimensions(x)[1:]))


@kernel(ops.repeat)
def repeat(g: GgmlBuilder, x: Node, dim: int, n: int) -> Ptr:
    ne = list(four_dimensions(x))
    ne[dim] *= n
    return repeat_to_shape(g, x, tuple(ne))


@kernel(ops.repeat_4d)
def repeat_4d(g: GgmlBuilder, x: Node, dim0: int, dim1: int = 1, dim2: int = 1, dim3: int = 1) -> Ptr:
    return repeat_to_shape(g, x, (dim0, dim1, dim2, dim3))


def repeat_to_shape(g: GgmlBuilder, x: Node, ne: tuple[int, ...]) -> Ptr:
    if x.dtype is not DType.I64:
        return g.call("repeat_4d", g.dense(x), *ne)
    made, have = g.dense(x), list(four_dimensions(x))
    for dim in range(4):  # one dimension at a time, because the halves of i64 need one too
        inner, outer, extent = 2 * prod(have[:dim]), prod(have[dim + 1 :]), have[dim]
        have[dim] = ne[dim]
        if ne[dim] != extent:
            halves = g.bitcast(made, DType.I32, (inner, extent, outer, 1))
            made = g.bitcast(g.call("repeat_4d", halves, inner, ne[dim], outer, 1), DType.I64, have)
    return made
