"""Attention: native code of ours or ggml's flash attention, or two products and a softmax.

Native code reads keys and values once for all heads that share them. A table of the cells that queries see is made from
each mask, once for all layers. The work is divided into parts by the mask alone, never by the number of threads, so
results do not depend on it.
"""

from __future__ import annotations

import struct
import sys

from backbay import DType, Node, ops
from backbay_native import ATTENTION

from ..devices.known_faults import CAPPED_SHORT_HEADS, QUERIES_BETWEEN_VECTORS
from ..library.abi import NULL, Ptr, dtype_of, ffi
from ..library.avoidance import CAPPED_TILES, PARTIAL_VECTORS
from ..lowering.builder import GgmlBuilder, kernel
from .matrix import mul_mat

MANY = 64  # queries, as many as a tile of ggml's flash attention has
CAPPED_HEADS = (128, 256)  # numbers of a head, for which CUDA's flash attention caps scores
VECTOR = 16  # elements of f32; ggml's flash attention has tiles for values of whole vectors
# The other numbers are those of native code.
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


@kernel(ops.scaled_dot_product_attention)
def scaled_dot_product_attention(
    g: GgmlBuilder,
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None = None,
    *,
    scale: float,
    sinks: Node | None = None,
    vmla: Node | None = None,
    softcap: float = 0.0,
    cache_config_applied: bool = False,
) -> Ptr:
    if g.on_cpu and g.flash and not cache_config_applied and _fits_native(g, query, key, value):
        result = _native(g, query, key, value, mask, sinks, scale, softcap)
        return result if vmla is None else _times(g, vmla, g.permute(result, 0, 2, 1, 3))
    many = g.on_cpu and mask is None and query.dim(2) >= MANY and key.dtype is value.dtype is DType.F32
    # Flash attention takes f16 masks, and values that are not permuted.
    flash = g.flash and not cache_config_applied and (mask is None or mask.dtype is DType.F16)
    if softcap and mask is None and query.dim(2) >= MANY and g.avoids(CAPPED_TILES):
        flash = False  # tiles would attend to keys that are not there
    if softcap and query.dim(0) not in CAPPED_HEADS and g.fails(CAPPED_SHORT_HEADS):
        flash = False
    q = g.permute(g.rows(query, DType.F32), 0, 2, 1, 3)  # (d, tokens, heads, batch)
    k = g.with_rows(g.permute(g.rows(key), 0, 2, 1, 3))  # (d, history, kv_heads, batch)
    bias = None if mask is None else g.dense(mask)
    column = None if sinks is None else g.floats(sinks)
    if flash:
        lying = g.padded(g.rows(value), -value.dim(0) % VECTOR if many and g.avoids(PARTIAL_VECTORS) else 0)
        v = g.permute(lying, 0, 2, 1, 3)  # (dv, history, kv_heads, batch)
        if g.fails(QUERIES_BETWEEN_VECTORS):
            q, k, v = (_in_fours(g, rows) for rows in (q, k, v))
        result = g.call("flash_attn_ext", q, k, v, NULL if bias is None else bias, scale, 0.0, softcap)
        if column is not None:
            g.lib.ggml_flash_attn_ext_add_sinks(result, column)
        if result.ne[0] != value.dim(0):
            shape = (value.dim(0), *tuple(result.ne)[1:])
            result = g.call("cont", g.view(result, DType.F32, shape, tuple(result.nb), 0))
        if vmla is None:
            return result  # (dv, heads, tokens, batch)
        return _times(g, vmla, g.permute(result, 0, 2, 1, 3))
    v = _value(g, value, cache_config_applied)  # (history, dv, kv_heads, batch)
    result = mul_mat(g, v, _weights(g, q, k, bias, column, scale, softcap))
    return _times(g, vmla, result)


def _times(g: GgmlBuilder, vmla: Node | None, result: Ptr) -> Ptr:
    """(dv, tokens, heads, batch), times vmla if there is one, as (dv or e, heads, tokens, batch)."""
    if vmla is not None:
        result = mul_mat(g, g.rows(vmla), g.contiguous(result))
    return g.contiguous(g.permute(result, 0, 2, 1, 3))


def _in_fours(g: GgmlBuilder, rows: Ptr) -> Ptr:
    """Rows that begin at whole vectors of four numbers: Vulkan reads others from wrong places."""
    dtype = dtype_of(rows)
    if dtype.is_quantized or not any(step % (4 * dtype.type_size) for step in list(rows.nb)[1:]):
        return rows
    return g.call("cont", rows)


def _value(g: GgmlBuilder, value: Node, permuted: bool) -> Ptr:
    if permuted:
        return g.rows(value)
    floats = g.cast(g.raw(value), DType.F32) if value.dtype.is_quantized else g.raw(value)
    return g.call("cont", g.permute(floats, 1, 2, 0, 3))


def _weights(
    g: GgmlBuilder, q: Ptr, k: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
) -> Ptr:
    scores = mul_mat(g, k, q, full=True)  # (history, tokens, heads, batch)
    if softcap:
        scores = g.call("scale", g.call("tanh", g.call("scale", scores, scale / softcap)), softcap)
        scale = 1.0
    weights = g.call("soft_max_ext", scores, NULL if mask is None else mask, scale, 0.0)
    if sinks is not None:
        g.lib.ggml_soft_max_add_sinks(weights, sinks)
    return weights


def _fits_native(g: GgmlBuilder, query: Node, key: Node, value: Node) -> bool:
    return (
        {key.dtype, value.dtype} <= set(CACHES)
        and max(query.dim(0), value.dim(0)) <= MOST_FEATURES
        and 0 not in (*query.shape, *key.shape, *value.shape)
        and g.library.native.has(ATTENTION)
    )


def _native(
    g: GgmlBuilder,
    query: Node,
    key: Node,
    value: Node,
    mask: Node | None,
    sinks: Node | None,
    scale: float,
    softcap: float,
) -> Ptr:
    hidden = [] if mask is None else _hidden(g, query, key, mask)
    column = [] if sinks is None else [g.floats(sinks)]
    operands = [g.rows(query, DType.F32), g.rows(key), g.rows(value), *hidden, *column]
    numbers = _pointer(struct.pack("=ff", scale, softcap))
    heads, tokens, batch = query.dim(1), query.dim(2), query.dim(3)
    shape, parts = (value.dim(0), heads, tokens, batch), _parts(query, key)
    if parts == 1:
        return g.custom("attention", shape, operands, numbers)
    sums = value.dim(0) + 2, parts, heads, tokens * batch
    made = g.custom("attention_parts", sums, operands, numbers)
    return g.custom("attention_sum", shape, [made, *hidden[1:], *column], ffi.cast("void *", key.dim(2)))


def _hidden(g: GgmlBuilder, query: Node, key: Node, mask: Node) -> list[Ptr]:
    """The mask, and the table of the cells that it shows."""
    raw, tokens, tile = g.raw(mask), query.dim(2), _tile(query, key)

    def table() -> Ptr:
        lines = min(tokens, -(-tokens // tile) + SPLITS)
        shape = HEADER + key.dim(2), lines, mask.dim(3), 1
        sizes = _pointer(struct.pack("=II", tokens, tile))
        return g.custom("visible_cells", shape, [rows], sizes, dtype=DType.I32, threads=1)

    rows = g.once(raw, "rows", lambda: g.rows(mask))
    return [rows, g.once(raw, f"cells of {tokens} queries in tiles of {tile}", table)]


def _tile(query: Node, key: Node) -> int:
    together = min(query.dim(1) // key.dim(1), MOST_TOGETHER)
    return max(SIXTEEN, LANES // together // SIXTEEN * SIXTEEN)


def _parts(query: Node, key: Node) -> int:
    """The parts that the cells of a tile are divided into."""
    units = -(-query.dim(2) // _tile(query, key)) * key.dim(1) * query.dim(3)
    return max(1, min(-(-UNITS // units), -(-key.dim(2) // PART), MOST_PARTS))


def _pointer(data: bytes) -> Ptr:
    return ffi.cast("void *", int.from_bytes(data, sys.byteorder))
