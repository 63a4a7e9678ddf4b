"""Attention as one op, so that backends can fuse it."""

from typing import Any

from ..errors import DTypeError
from ..types.dtype import DType
from ..types.spec import Spec, divides, require, require_dtype, require_float, result_spec
from .op_declaration import op


def _numbers(x: Spec, name: str) -> None:
    if x.dtype.is_integer:
        raise DTypeError(f"{name} must be a float or a quantized type, got {x.dtype}")


@op
def scaled_dot_product_attention(
    query: Spec,
    key: Spec,
    value: Spec,
    mask: Spec | None = None,
    *,
    scale: float,
    sinks: Spec | None = None,
    vmla: Spec | None = None,
    softcap: float = 0.0,
    cache_config_applied: bool = False,
) -> Spec:
    """For each head: softmax(scale * query . key + mask) . value.

    query is (d, heads, tokens, batch), key (d, kv_heads, history, batch), value (dv, kv_heads, history, batch); the
    result is f32 (dv, heads, tokens, batch) of query's rank, contiguous. Each group of heads / kv_heads consecutive
    heads shares one head of key and value. query is float; key and value may be quantized.

    The steps, in this order:

    1. s = query . key, summed in f32
    2. s = s * scale
    3. s = softcap * tanh(s / softcap), unless softcap is 0
    4. s = s + mask
    5. sinks, float (heads,), become one more column of s
    6. the softmax of s over history; the column of sinks is then dropped
    7. times value
    8. for each head times vmla, (dv, e, heads); the result then is (e, heads, tokens, batch)

    mask is f32 or f16 (history, rows, 1 or heads, 1 or batch). It has at least as many rows as there are tokens;
    further rows are padding. A fully masked row gives 0 or NaN, and affects no other row. An empty history gives 0.

    cache_config_applied says that key, value and mask come from a cache that follows the backend's CacheConfig: with
    permuted_v, value is (history, dv, kv_heads, batch). A kernel gets True only in this case, so for a kernel
    cache_config_applied means that value is permuted.
    """
    require_float(query, "query")
    _numbers(key, "key")
    _numbers(value, "value")
    heads, tokens, batch = query.dim(1), query.dim(2), query.dim(3)
    kv_heads, history = key.dim(1), key.dim(2)
    rule = "dimension 0 of query and key must match, {} != {}"
    require(key.dim(0) == query.dim(0), rule, query.dim(0), key.dim(0))
    require(divides(kv_heads, heads), "kv_heads must divide heads, {} does not divide {}", kv_heads, heads)
    rule = "batch must match, {}, {}, {}"
    require(key.dim(3) == value.dim(3) == batch, rule, batch, key.dim(3), value.dim(3))
    shape = tuple(value.dim(n) for n in range(3))
    have = (shape[2], shape[0]) if cache_config_applied else shape[1:]
    rule = "value must have key's {} kv_heads and {} positions, got {} and {}"
    require(have == (kv_heads, history), rule, kv_heads, history, *have)
    require(softcap >= 0, "softcap must not be negative, got {}", softcap)
    if mask is not None:
        _check_mask(mask, history, tokens, heads, batch)
    if sinks is not None:
        require_float(sinks, "sinks")
        rule = "sinks must have shape ({},), got {}"
        require(sinks.size == sinks.dim(0) == heads, rule, heads, list(sinks.shape))
    width = shape[1] if cache_config_applied else shape[0]
    if vmla is not None:
        _numbers(vmla, "vmla")
        fits = vmla.dim(0) == width and vmla.dim(2) == heads and vmla.dim(3) == 1
        require(fits, "vmla must be ({}, e, {}), got {}", width, heads, list(vmla.shape))
        width = vmla.dim(1)
    return result_spec(DType.F32, (width, *query.shape[1:]))


def _check_mask(mask: Spec, history: int, tokens: int, heads: int, batch: int) -> None:
    require_dtype(mask, (DType.F32, DType.F16), "mask")
    require(mask.dim(0) == history, "mask must cover {} positions, got {}", history, mask.dim(0))
    require(mask.dim(1) >= tokens, "mask must have at least {} rows, got {}", tokens, mask.dim(1))
    require(mask.dim(2) in (1, heads), "dimension 2 of mask must be 1 or {}, got {}", heads, mask.dim(2))
    require(mask.dim(3) in (1, batch), "dimension 3 of mask must be 1 or {}, got {}", batch, mask.dim(3))


@scaled_dot_product_attention.prepare
def _permuted_only(ctx: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*args[:-1], args[-1] and ctx.backend.cache_config().permuted_v)
