"""Attention: native code of ours or ggml's flash attention, or two products and a softmax."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..devices.fault_cases import CAPPED_SHORT_HEADS, QUERIES_BETWEEN_VECTORS
from ..library.abi import NULL, Ptr, dtype_of
from ..lowering.builder import Builder
from ..lowering.native_attention import fits_native, native_attention
from ..lowering.products import mul_mat
from .kernel_table import kernel

MANY = 64  # queries, as many as a tile of ggml's flash attention has
CAPPED_HEADS = (128, 256)  # numbers of a head, for which CUDA's flash attention caps scores
VECTOR = 16  # elements of f32; ggml's flash attention has tiles for values of whole vectors


@kernel(ops.scaled_dot_product_attention)
def scaled_dot_product_attention(
    g: Builder,
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
    native = g.library.attention if g.on_cpu and g.flash and not cache_config_applied else None
    if native and fits_native(query, key, value):
        result = native_attention(g, native, query, key, value, mask, sinks, scale, softcap)
        return result if vmla is None else _times(g, vmla, g.permute(result, 0, 2, 1, 3))
    many = g.on_cpu and mask is None and query.dim(2) >= MANY and key.dtype is value.dtype is DType.F32
    flash = takes_flash(g.flash, mask, cache_config_applied)
    if (
        softcap and mask is None and query.dim(2) >= MANY
    ):  # ggml's tiles then attend to keys that are not there
        flash = False
    if softcap and query.dim(0) not in CAPPED_HEADS and g.fails(CAPPED_SHORT_HEADS):
        flash = False
    q = g.permute(g.rows(query, DType.F32), 0, 2, 1, 3)  # (d, tokens, heads, batch)
    k = g.with_rows(g.permute(g.rows(key), 0, 2, 1, 3))  # (d, history, kv_heads, batch)
    bias = None if mask is None else g.dense(mask)
    column = None if sinks is None else g.floats(sinks)
    if flash:
        lying = _padded(g, value) if many else g.rows(value)
        v = g.permute(lying, 0, 2, 1, 3)  # (dv, history, kv_heads, batch)
        if g.fails(QUERIES_BETWEEN_VECTORS):
            q, k, v = (_in_fours(g, rows) for rows in (q, k, v))
        result = g.call("flash_attn_ext", q, k, v, NULL if bias is None else bias, scale, 0.0, softcap)
        if column is not None:
            g.lib.ggml_flash_attn_ext_add_sinks(result, column)
        if result.ne[0] != value.dim(0):
            result = _first_features(g, result, value.dim(0))
        if vmla is None:
            return result  # (dv, heads, tokens, batch)
        return _times(g, vmla, g.permute(result, 0, 2, 1, 3))
    v = _value(g, value, cache_config_applied)  # (history, dv, kv_heads, batch)
    result = mul_mat(g, v, _weights(g, q, k, bias, column, scale, softcap))
    return _times(g, vmla, result)


def _times(g: Builder, vmla: Node | None, result: Ptr) -> Ptr:
    """(dv, tokens, heads, batch), times vmla if there is one, as (dv or e, heads, tokens, batch)."""
    if vmla is not None:
        result = mul_mat(g, g.rows(vmla), g.contiguous(result))
    return g.contiguous(g.permute(result, 0, 2, 1, 3))


def _padded(g: Builder, value: Node) -> Ptr:
    """Values with zeros up to a whole vector."""
    missing = -value.dim(0) % VECTOR
    return g.call("pad_ext", g.rows(value), 0, missing, 0, 0, 0, 0, 0, 0) if missing else g.rows(value)


def _in_fours(g: Builder, rows: Ptr) -> Ptr:
    """Rows that begin at whole vectors of four numbers: Vulkan reads others from wrong places."""
    dtype = dtype_of(rows)
    if dtype.is_quantized or not any(step % (4 * dtype.type_size) for step in list(rows.nb)[1:]):
        return rows
    return g.call("cont", rows)


def _first_features(g: Builder, result: Ptr, count: int) -> Ptr:
    shape = (count, *tuple(result.ne)[1:])
    return g.call("cont", g.view(result, DType.F32, shape, tuple(result.nb), 0))


def takes_flash(allowed: bool, mask: Node | None, permuted: bool) -> bool:
    """Whether flash attention applies: it takes f16 masks, and values that are not permuted."""
    return allowed and not permuted and (mask is None or mask.dtype is DType.F16)


def _value(g: Builder, value: Node, permuted: bool) -> Ptr:
    if permuted:
        return g.rows(value)
    floats = g.cast(g.raw(value), DType.F32) if value.dtype.is_quantized else g.raw(value)
    return g.call("cont", g.permute(floats, 1, 2, 0, 3))


def _weights(
    g: Builder, q: Ptr, k: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
) -> Ptr:
    scores = mul_mat(g, k, q, full=True)  # (history, tokens, heads, batch)
    if softcap:
        scores = g.call("scale", g.call("tanh", g.call("scale", scores, scale / softcap)), softcap)
        scale = 1.0
    weights = g.call("soft_max_ext", scores, NULL if mask is None else mask, scale, 0.0)
    if sinks is not None:
        g.lib.ggml_soft_max_add_sinks(weights, sinks)
    return weights
