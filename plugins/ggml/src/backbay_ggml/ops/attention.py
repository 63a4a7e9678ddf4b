"""Attention: ggml's flash attention, or two products and a softmax."""

from __future__ import annotations

from backbay import DType, Node, ops

from ..library.abi import NULL, Ptr
from ..lowering.builder import Builder
from ..lowering.products import FULL_PRECISION
from .kernel_table import kernel

MANY = 64  # queries from which two products are faster on a CPU than its flash attention, which has no tiles
MOST_SCORES = 128 << 20  # bytes; flash attention holds none
VECTOR = 16  # elements of f32


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
    q = g.permute(g.rows(query, DType.F32), 0, 2, 1, 3)  # (d, tokens, heads, batch)
    k = g.with_rows(g.permute(g.rows(key), 0, 2, 1, 3))  # (d, history, kv_heads, batch)
    bias = None if mask is None else g.dense(mask)
    column = None if sinks is None else g.floats(sinks)
    flash = takes_flash(g.flash, mask, cache_config_applied)
    if flash and g.on_cpu and mask is None and _fits_products(query, key):
        flash, q, k = False, _padded(g, q), _padded(g, k)
    if flash:
        v = g.permute(g.rows(value), 0, 2, 1, 3)  # (dv, history, kv_heads, batch)
        result = g.call("flash_attn_ext", q, k, v, NULL if bias is None else bias, scale, 0.0, softcap)
        if column is not None:
            g.lib.ggml_flash_attn_ext_add_sinks(result, column)
        if vmla is None:
            return result  # (dv, heads, tokens, batch)
        result = g.contiguous(g.permute(result, 0, 2, 1, 3))
    else:
        v = _value(g, value, cache_config_applied)  # (history, dv, kv_heads, batch)
        result = g.call("mul_mat", v, _weights(g, q, k, bias, column, scale, softcap))
    if vmla is not None:
        result = g.call("mul_mat", g.rows(vmla), result)
    return g.contiguous(g.permute(result, 0, 2, 1, 3))


def _fits_products(query: Node, key: Node) -> bool:
    """Whether there are many queries, but not so many that their scores take much memory."""
    scores = 4 * query.dim(1) * query.dim(2) * query.dim(3) * key.dim(2)
    return key.dtype is DType.F32 and query.dim(2) >= MANY and scores <= MOST_SCORES


def _padded(g: Builder, x: Ptr) -> Ptr:
    """Queries or keys as the CPU's fast product takes them: rows without gaps, of whole vectors."""
    floats, missing = g.contiguous(x), -x.ne[0] % VECTOR
    return g.call("pad_ext", floats, 0, missing, 0, 0, 0, 0, 0, 0) if missing else floats


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
    scores = g.call("mul_mat", k, q)  # (history, tokens, heads, batch)
    g.lib.ggml_mul_mat_set_prec(scores, FULL_PRECISION)
    if softcap:
        scores = g.call("scale", g.call("tanh", g.call("scale", scores, scale / softcap)), softcap)
        scale = 1.0
    weights = g.call("soft_max_ext", scores, NULL if mask is None else mask, scale, 0.0)
    if sinks is not None:
        g.lib.ggml_soft_max_add_sinks(weights, sinks)
    return weights
