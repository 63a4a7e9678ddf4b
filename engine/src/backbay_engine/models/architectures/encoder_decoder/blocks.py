"""The blocks of T5: attention whose positions are biases by distance, over the own side and over a text."""

from __future__ import annotations

from math import log
from typing import final

import numpy as np

from backbay import Context, DType, Tensor

from ....steps.step import Ints
from ...nn import FeedForward, GatedFeedForward, Linear, RMSNorm, Shape, Weights

FARTHEST = 128  # distances beyond it are one


def buckets(distances: Ints, count: int) -> Ints:
    """The buckets of distances, 0 or more: one for each of the near ones, then ever wider ones."""
    near = count // 2
    ratio = np.log(np.maximum(distances, near).astype(np.float32) / near) / np.float32(log(FARTHEST / near))
    far = near + (ratio * (count - near)).astype(np.int32)
    return np.where(distances < near, distances, np.minimum(far, count - 1)).astype(np.int32)


@final
class Heads:
    """Attention without positions, of tokens over keys and values that are given; scores are not scaled."""

    def __init__(self, weights: Weights, prefix: str, shape: Shape) -> None:
        self.head, self.heads = shape.head, shape.heads
        inner = shape.head * shape.heads
        self.query, self.key, self.value = (
            Linear(weights, f"{prefix}_{letter}", shape.width, inner) for letter in "qkv"
        )
        self.output = Linear(weights, f"{prefix}_o", inner, shape.width)

    def queries(self, ctx: Context, x: Tensor) -> Tensor:
        """(head, heads, tokens)"""
        return self.query(ctx, x).reshape(ctx, self.head, self.heads, x.dim(1))

    def pairs(self, ctx: Context, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, (head, heads, tokens)."""
        k, v = (
            linear(ctx, x).reshape(ctx, self.head, self.heads, x.dim(1)) for linear in (self.key, self.value)
        )
        return k, v

    def __call__(
        self, ctx: Context, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, cached: bool
    ) -> Tensor:
        a = q.scaled_dot_product_attention(ctx, k, v, mask, scale=1.0, cache_config_applied=cached)
        return self.output(ctx, a.reshape(ctx, self.head * self.heads, q.dim(2)))


@final
class Block:
    """Attention over the own side, attention over the text in the decoder, and a feed-forward, each behind a norm."""

    def __init__(self, weights: Weights, shape: Shape, *, crosses: bool) -> None:
        self.norm = RMSNorm(weights, "attn_norm", shape.width)
        self.attention = Heads(weights, "attn", shape)
        self.cross_norm = RMSNorm(weights, "cross_attn_norm", shape.width) if crosses else None
        self.cross = Heads(weights, "cross_attn", shape) if crosses else None
        self.feed_forward_norm = RMSNorm(weights, "ffn_norm", shape.width)
        self.feed_forward: FeedForward | GatedFeedForward
        if "ffn_gate.weight" in weights:
            self.feed_forward = GatedFeedForward(weights, shape, "gelu")
        else:
            self.feed_forward = FeedForward(weights, shape, "relu")

    def fed(self, ctx: Context, x: Tensor) -> Tensor:
        return x.add(ctx, self.feed_forward(ctx, self.feed_forward_norm(ctx, x)))


def biased(ctx: Context, table: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """A mask, (history, rows), with the bias of each pair's bucket: (history, rows, heads)."""
    heads, history, rows = table.dim(0), ids.dim(0), ids.dim(1)
    bias = table.rows(ctx, ids.reshape(ctx, history * rows)).reshape(ctx, heads, history, rows)
    return bias.permute(ctx, 2, 0, 1).contiguous(ctx).add(ctx, mask.cast(ctx, DType.F32))
