"""Attention of a step's tokens over the cache, which includes the step itself."""

from __future__ import annotations

from typing import final

from backbay import BackbayError, Context, Tensor

from ...cache.contract import BoundCache
from ..batch import Batch
from .linear import Linear
from .norm import RMSNorm
from .rope import Rope
from .shape import Shape
from .weights import Weights


@final
class Projection:
    """Queries, keys and values, from three matrices or from one joint matrix, attn_qkv."""

    def __init__(self, weights: Weights, shape: Shape, *, biased: bool = False) -> None:
        self.heads = (
            (shape.head, shape.heads),
            (shape.head, shape.kv_heads),
            (shape.value_head, shape.kv_heads),
        )
        widths = [head * heads for head, heads in self.heads]
        self.joint, self.separate = None, list[Linear]()
        if "attn_qkv.weight" in weights:
            self.joint = Linear(weights, "attn_qkv", shape.width, sum(widths), biased=biased)
        else:
            for name, width in zip(("attn_q", "attn_k", "attn_v"), widths, strict=True):
                self.separate.append(Linear(weights, name, shape.width, width, biased=biased))

    def __call__(self, ctx: Context, x: Tensor) -> list[Tensor]:
        """(head, heads, tokens) of each."""
        tokens = x.dim(1)
        if self.joint is None:
            pairs = zip(self.separate, self.heads, strict=True)
            return [linear(ctx, x).reshape(ctx, *heads, tokens) for linear, heads in pairs]
        joint, offset, parts = self.joint(ctx, x), 0, []
        for head, heads in self.heads:
            row = head * joint.stride(0)
            parts.append(joint.view(ctx, offset, (head, heads, tokens), (row, joint.stride(1))))
            offset += row * heads
        return parts


@final
class Attention:
    """A block's attention. Optional biases are used if the file has them.

    norms, sinks, biased    the file must have norms of queries and keys, sinks, biases
    """

    def __init__(
        self,
        weights: Weights,
        shape: Shape,
        rope: Rope,
        *,
        scale: float | None = None,
        softcap: float = 0.0,
        norms: bool = False,
        sinks: bool = False,
        biased: bool = False,
    ) -> None:
        self.rope, self.softcap = rope, softcap
        self.scale = shape.head**-0.5 if scale is None else scale
        self.project = Projection(weights, shape, biased=biased)
        self.query_norm = RMSNorm(weights, "attn_q_norm", shape.head) if norms else None
        self.key_norm = RMSNorm(weights, "attn_k_norm", shape.head) if norms else None
        self.sinks = weights.need("attn_sinks.weight", shape.heads) if sinks else None
        inner = shape.heads * shape.value_head
        self.output = Linear(weights, "attn_output", inner, shape.width, biased=biased)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        """(width, tokens); with `last`, only the outputs, (width, outputs)."""
        q, k, v = self.project(ctx, x)
        q = q if self.query_norm is None else self.query_norm(ctx, q)
        k = k if self.key_norm is None else self.key_norm(ctx, k)
        q, k = (self.rope(ctx, t, batch.positions) for t in (q, k))
        a = attend(ctx, layer, q, k, v, batch.cache, self.scale, sinks=self.sinks, softcap=self.softcap)
        a = a.reshape(ctx, -1, batch.size)
        return self.output(ctx, batch.select(ctx, a) if last else a)


def attend(
    ctx: Context,
    layer: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: BoundCache | None,
    scale: float,
    *,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
) -> Tensor:
    """Store keys and values in the cache, and attend over all that the layer holds; (value_head, heads, tokens)."""
    if cache is None:
        raise BackbayError(
            "this model attends to earlier tokens: its steps need the cache that new_cache() gives"
        )
    cache.put(ctx, layer, k, v)
    seen = cache.get(ctx, layer)
    return q.scaled_dot_product_attention(
        ctx,
        seen.key,
        seen.value,
        seen.mask,
        scale=scale,
        sinks=sinks,
        softcap=softcap,
        cache_config_applied=True,
    )
