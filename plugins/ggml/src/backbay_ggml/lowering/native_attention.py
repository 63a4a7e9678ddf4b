"""Attention by native code of ours: keys and values are read once for all heads that share them.

A table of the cells that queries see is made from each mask, once for all layers. The work is divided into parts by
the mask alone, never by the number of threads, so results do not depend on it.
"""

from __future__ import annotations

import struct
import sys

from backbay import DType, Node

from ..library.abi import Ptr, ffi
from ..library.native import NativeAttention
from .builder import Builder

CACHES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)
MOST_FEATURES = 1024  # of a head
LANES = 128  # rows of scores in a tile, as in attention_call.h; so are the next four
SIXTEEN = 16  # queries: a tile has a multiple of them
MOST_TOGETHER = 8  # heads of a tile
HEADER = 4  # numbers before the cells of a line of the table
SPLITS = 16  # tiles that end early, where the next query sees other cells
UNITS = 128  # of work: enough for all threads
PART = 256  # cells of a part, least
MOST_PARTS = 32


def fits_native(query: Node, key: Node, value: Node) -> bool:
    """Whether native code takes these operands."""
    sizes = query.dim(0), value.dim(0)
    return (
        {key.dtype, value.dtype} <= set(CACHES)
        and max(sizes) <= MOST_FEATURES
        and 0 not in (*query.shape, *key.shape, *value.shape)
    )


def native_attention(
    g: Builder,
    native: NativeAttention,
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None,
    sinks: Node | None,
    scale: float,
    softcap: float,
) -> Ptr:
    """Attention as (dv, heads, tokens, batch)."""
    hidden = [] if mask is None else _hidden(g, native, query, key, mask)
    column = [] if sinks is None else [g.floats(sinks)]
    operands = [g.rows(query, DType.F32), g.rows(key), g.rows(value), *hidden, *column]
    numbers = _pointer(struct.pack("=ff", scale, softcap))
    heads, tokens, batch = query.dim(1), query.dim(2), query.dim(3)
    shape, parts = (value.dim(0), heads, tokens, batch), _parts(query, key)
    if parts == 1:
        return g.custom(native.whole, shape, operands, numbers)
    made = g.custom(native.parts, (value.dim(0) + 2, parts, heads, tokens * batch), operands, numbers)
    return g.custom(native.sum, shape, [made, *hidden[1:], *column], ffi.cast("void *", key.dim(2)))


def _hidden(g: Builder, native: NativeAttention, query: Node, key: Node, mask: Node) -> list[Ptr]:
    """The mask, and the table of the cells that it shows."""
    raw, tokens, tile = g.raw(mask), query.dim(2), _tile(query, key)

    def table() -> Ptr:
        lines = min(tokens, -(-tokens // tile) + SPLITS)
        shape = HEADER + key.dim(2), lines, mask.dim(3), 1
        sizes = _pointer(struct.pack("=II", tokens, tile))
        return g.custom(native.cells, shape, [rows], sizes, dtype=DType.I32, threads=1)

    rows = g.once(raw, "rows", lambda: g.rows(mask))
    return [rows, g.once(raw, f"cells of {tokens} queries in tiles of {tile}", table)]


def _tile(query: Node, key: Node) -> int:
    """The queries of a full tile."""
    together = min(query.dim(1) // key.dim(1), MOST_TOGETHER)
    return max(SIXTEEN, LANES // together // SIXTEEN * SIXTEEN)


def _parts(query: Node, key: Node) -> int:
    """The parts that the cells of a tile are divided into."""
    units = -(-query.dim(2) // _tile(query, key)) * key.dim(1) * query.dim(3)
    return max(1, min(-(-UNITS // units), -(-key.dim(2) // PART), MOST_PARTS))


def _pointer(data: bytes) -> Ptr:
    """Eight bytes in place of a pointer."""
    return ffi.cast("void *", int.from_bytes(data, sys.byteorder))
