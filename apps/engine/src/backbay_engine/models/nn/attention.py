"""Attention of a step's tokens over the cache, which includes the step itself."""

from __future__ import annotations

from typing import Literal, final

from backbay import BackbayError, Context, Tensor

from ...cache.contract import BoundCache
from ..batch import Batch
from .linear import Linear
from .norm import LayerNorm, RMSNorm
from .rope import Rope
from .shape import Shape
from .weights import Weights


@final
class Projection:
    """Queries, keys and values, from three matrices or from one joint matrix, attn_qkv."""

    def __init__(self, weights: Weights, shape: Shape, *, biased: bool = False) -> None:
        heads, kv_heads = shape.heads, shape.kv_heads
        self.heads = (shape.head, heads), (shape.head, kv_heads), (shape.value_head, kv_heads)
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

    rope            None: the block knows no positions
    norms           queries and keys have norms, of each head or, with "joint", of all heads together; `norm` is
                    their kind
    sinks, biased   the file must have sinks, biases
    """

    def __init__(
        self,
        weights: Weights,
        shape: Shape,
        rope: Rope | None,
        *,
        scale: float | None = None,
        softcap: float = 0.0,
        norms: Literal[False, True, "joint"] = False,
        norm: type[RMSNorm | LayerNorm] = RMSNorm,
        sinks: bool = False,
        biased: bool = False,
    ) -> None:
        self.rope, self.softcap = rope, softcap
        self.scale = shape.head**-0.5 if scale is None else scale
        self.project = Projection(weights, shape, biased=biased)
        self.query_norm = self.key_norm = None
        if norms:
            q_heads, k_heads = (shape.heads, shape.kv_heads) if norms == "joint" else (1, 1)
            self.query_norm = norm(weights, "attn_q_norm", shape.head * q_heads)
            self.key_norm = norm(weights, "attn_k_norm", shape.head * k_heads)
        self.sinks = weights.need("attn_sinks.weight", shape.heads) if sinks else None
        inner = shape.heads * shape.value_head
        self.output = Linear(weights, "attn_output", inner, shape.width, biased=biased)

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool = False) -> Tensor:
        """(width, tokens); with `last`, only the outputs, (width, outputs)."""
        q, k, v = self.project(ctx, x)
        q, k = _normed(ctx, q, self.query_norm), _normed(ctx, k, self.key_norm)
        if self.rope is not None:
            positions = self.rope.positions(batch)
            q, k = (self.rope(ctx, t, positions) for t in (q, k))
        a = attend(ctx, layer, q, k, v, batch.cache, self.scale, sinks=self.sinks, softcap=self.softcap)
        a = a.reshape(ctx, -1, batch.size)
        return self.output(ctx, batch.select(ctx, a) if last else a)


def _normed(ctx: Context, x: Tensor, norm: RMSNorm | LayerNorm | None) -> Tensor:
    """(head, heads, tokens), normed by head or over all heads, whichever the norm's weight is for."""
    if norm is None:
        return x
    return norm(ctx, x.reshape(ctx, norm.weight.dim(0), -1, x.dim(2))).reshape(ctx, *x.shape)


def attend(
    ctx: Context,
    layer: int,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: BoundCache | None,
    scale: float,
    *,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
    vmla: Tensor | None = None,
) -> Tensor:
    """Store keys and values in the cache, and attend over all that the layer holds; (value_head, heads, tokens).

    Without keys and values, the step attends over a layer that holds its own already.
    """
    if cache is None:
        raise BackbayError(
            "this model attends to earlier tokens: its steps need the cache that new_cache() gives"
        )
    if k is not None and v is not None:
        cache.put(ctx, layer, k, v)
    return cache.get(ctx, layer).attend(ctx, q, scale, sinks=sinks, vmla=vmla, softcap=softcap)
