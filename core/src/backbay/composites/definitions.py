"""The composites: ops as compositions of other ops, for backends that have no kernel for them."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, pi, sqrt
from typing import Any, TypeVar

from .. import ops
from ..ops.op_declaration import Op
from ..ops.write import region
from ..trace.context import Context
from ..trace.tensor import Tensor
from ..types.dtype import DType
from ..types.spec import contiguous_strides
from .delta_rule import DeltaRuleOperands, in_chunks, one_token

F = TypeVar("F", bound=Callable[..., Any])


def composite(op: Op[Any, Any], *, in_f32: bool = False, varies: bool = False) -> Callable[[F], F]:
    """Declare an op's composite: a function of the context and the op's own parameters.

    With `in_f32`, the receiver is converted to f32 first, and the result is rounded once to the receiver's dtype.
    With `varies`, attributes decide which ops the composite needs, so that they cannot be listed in advance.
    """

    def register(function: F) -> F:
        op.check_signature(function, skip=1)
        traced = op.spread(function, skip=1)
        op.composite, op.varies = _widened(traced) if in_f32 else traced, varies
        return function

    return register


def _widened(traced: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def widened(ctx: Context, x: Tensor, *others: Any) -> Tensor:
        if x.dtype is DType.F32:
            return traced(ctx, x, *others)
        return traced(ctx, x.cast(ctx, DType.F32), *others).cast(ctx, x.dtype)

    return widened


@composite(ops.silu, in_f32=True)
def silu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    if up is not None:
        return x.silu(ctx).mul(ctx, up)
    return x.mul(ctx, x.sigmoid(ctx))


@composite(ops.quick_gelu, in_f32=True)
def quick_gelu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    if up is not None:
        return x.quick_gelu(ctx).mul(ctx, up)
    return x.mul(ctx, x.scale(ctx, 1.702).sigmoid(ctx))


@composite(ops.relu)
def relu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    if up is not None:
        return x.relu(ctx).mul(ctx, up)
    return x.clamp(ctx, 0.0, inf)


@composite(ops.gelu, in_f32=True)
def gelu(ctx: Context, x: Tensor, up: Tensor | None = None) -> Tensor:
    if up is not None:
        return x.gelu(ctx).mul(ctx, up)
    cubic = x.add(ctx, x.mul(ctx, x).mul(ctx, x).scale(ctx, 0.044715))
    # (1 + tanh(z)) / 2 is sigmoid(2 z), which needs no tensor of ones
    return x.mul(ctx, cubic.scale(ctx, 2 * sqrt(2 / pi)).sigmoid(ctx))


@composite(ops.swiglu, in_f32=True)
def swiglu(ctx: Context, x: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    gate = x.clamp(ctx, -inf, limit)
    gate = gate.mul(ctx, gate.scale(ctx, alpha).sigmoid(ctx))
    return gate.mul(ctx, up.clamp(ctx, -limit, limit)).add(ctx, gate)


@composite(ops.sqr)
def sqr(ctx: Context, x: Tensor) -> Tensor:
    return x.mul(ctx, x)


@composite(ops.neg)
def neg(ctx: Context, x: Tensor) -> Tensor:
    return x.scale(ctx, -1.0)


@composite(ops.add_id)
def add_id(ctx: Context, x: Tensor, t2: Tensor, ids: Tensor) -> Tensor:
    return x.add(ctx, t2.rows(ctx, ids))


@composite(ops.rms_norm, in_f32=True)
def rms_norm(ctx: Context, x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    if weight is not None:
        return x.rms_norm(ctx, eps=eps).mul(ctx, weight)
    return x.div(ctx, _root(ctx, x.sqr(ctx).mean(ctx), eps))


@composite(ops.layer_norm, in_f32=True)
def layer_norm(
    ctx: Context, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    if weight is None and bias is None:
        centred = x.sub(ctx, x.mean(ctx))
        return centred.div(ctx, _root(ctx, centred.sqr(ctx).mean(ctx), eps))
    normed = x.layer_norm(ctx, eps=eps)
    normed = normed.mul(ctx, weight) if weight is not None else normed
    return normed.add(ctx, bias) if bias is not None else normed


def _root(ctx: Context, mean: Tensor, eps: float) -> Tensor:
    return mean.add(ctx, mean.fill(ctx, eps)).sqrt(ctx)


@composite(ops.l2_norm, in_f32=True)
def l2_norm(ctx: Context, x: Tensor, eps: float = 1e-12) -> Tensor:
    return x.div(ctx, x.sqr(ctx).sum_rows(ctx).sqrt(ctx).clamp(ctx, eps, inf))


@composite(ops.variance, in_f32=True)
def variance(ctx: Context, x: Tensor) -> Tensor:
    return x.sub(ctx, x.mean(ctx)).sqr(ctx).mean(ctx)


@composite(ops.stddev, in_f32=True)
def stddev(ctx: Context, x: Tensor) -> Tensor:
    return x.variance(ctx).sqrt(ctx)


@composite(ops.top_k)
def top_k(ctx: Context, x: Tensor, k: int) -> Tensor:
    order = x.neg(ctx).argsort(ctx)
    row = order if order.rank else order.reshape(ctx, 1)  # a scalar is a row of one
    return row.slice(ctx, 0, 0, k)


@composite(ops.duplicate)
def duplicate(ctx: Context, x: Tensor) -> Tensor:
    return x.contiguous(ctx)


@composite(ops.chunk)
def chunk(ctx: Context, x: Tensor, dim: int, size: int) -> list[Tensor]:
    extent = x.dim(dim)
    return [x.slice(ctx, dim, low, min(low + size, extent)) for low in range(0, extent, size)]


@composite(ops.chunk_sections)
def chunk_sections(ctx: Context, x: Tensor, dim: int, *sections: int) -> list[Tensor]:
    ends = [sum(sections[: i + 1]) for i in range(len(sections))]
    return [x.slice(ctx, dim, end - n, end) for n, end in zip(sections, ends, strict=True)]


@composite(ops.stack)
def stack(ctx: Context, x: Tensor, dim: int, *others: Tensor) -> Tensor:
    for other in others:
        x = x.concat(ctx, other, dim)
    return x


@composite(ops.repeat_4d, varies=True)
def repeat_4d(ctx: Context, x: Tensor, dim0: int, dim1: int = 1, dim2: int = 1, dim3: int = 1) -> Tensor:
    for n, extent in enumerate((dim0, dim1, dim2, dim3)):
        if extent != x.dim(n):
            x = x.repeat(ctx, n, extent // x.dim(n))
    return x


@composite(ops.pad)
def pad(ctx: Context, x: Tensor, *amounts: int) -> Tensor:
    a0, a1, a2, a3 = (*amounts, 0, 0, 0, 0)[:4]
    return x.pad_ext(ctx, 0, a0, 0, a1, 0, a2, 0, a3)


@composite(ops.set)
def set(ctx: Context, x: Tensor, t2: Tensor, offset: int, *strides: int) -> Tensor:
    target = region(x, t2, offset, strides)
    steps = target.strides or contiguous_strides(target.dtype, target.shape)
    written = t2.copy(ctx, x.view(ctx, offset, target.shape, steps[1:]))
    # An alias of all of x: as a view of the copy, it comes after the write.
    return written.view(ctx, -offset, x.shape, [x.stride(n) for n in range(1, x.rank)])


@composite(ops.delta_rule)
def delta_rule(
    ctx: Context,
    s: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    share: Tensor,
    removed: Tensor | None = None,
) -> Tensor:
    s, q, k, v, decay, share = (t.cast(ctx, DType.F32) for t in (s, q, k, v, decay, share))
    removed = None if removed is None else removed.cast(ctx, DType.F32)
    y, state = v.fill(ctx, 0.0), s
    if s.size and v.size:
        if removed is None:
            tokens = DeltaRuleOperands(
                q, k, v.mul(ctx, share), decay, k, k.mul(ctx, share), reads_decayed=True
            )
        else:
            tokens = DeltaRuleOperands(q, k, v, decay, removed, removed.mul(ctx, share), reads_decayed=False)
        compute = one_token if v.dim(2) == 1 else in_chunks
        y, state = compute(ctx, s, tokens)
    y, state = (t.contiguous(ctx, t.size) for t in (y, state))
    return y.concat(ctx, state, 0)


@composite(ops.scaled_dot_product_attention)
def scaled_dot_product_attention(
    ctx: Context,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    sinks: Tensor | None = None,
    vmla: Tensor | None = None,
    softcap: float = 0.0,
    cache_config_applied: bool = False,
) -> Tensor:
    query = query.permute(ctx, 0, 2, 1, 3)  # (d, tokens, heads, batch)
    key = key.permute(ctx, 0, 2, 1, 3)  # (d, history, kv_heads, batch)
    if not cache_config_applied:
        if value.dtype.is_quantized:
            value = value.cast(ctx, DType.F32)
        value = value.permute(ctx, 1, 2, 0, 3).contiguous(ctx)  # (history, dv, kv_heads, batch)
    scores = key.mulmat_full_prec(ctx, query).scale(ctx, scale)  # (history, tokens, heads, batch)
    if softcap:
        scores = scores.scale(ctx, 1 / softcap).tanh(ctx).scale(ctx, softcap)
    if mask is not None and query.dim(1):  # there are tokens
        scores = scores.add(ctx, mask.slice(ctx, 1, 0, query.dim(1)) if mask.dim(1) > query.dim(1) else mask)
    weights = _with_sinks(ctx, scores, sinks) if sinks is not None else scores.softmax(ctx)
    result = value.mulmat(ctx, weights)  # (dv, tokens, heads, batch)
    if vmla is not None:
        result = vmla.mulmat(ctx, result)
    return result.permute(ctx, 0, 2, 1, 3).contiguous(ctx)


def _with_sinks(ctx: Context, scores: Tensor, sinks: Tensor) -> Tensor:
    """The softmax over the scores and one more column, the sinks, which is dropped afterwards."""
    history, tokens, heads, batch = (scores.dim(n) for n in range(4))
    column = sinks.contiguous(ctx, 1, 1, heads).cast(ctx, DType.F32)
    column = column.repeat_4d(ctx, 1, tokens, heads, batch)
    return scores.concat(ctx, column, 0).softmax(ctx).slice(ctx, 0, 0, history).contiguous(ctx)
