"""The block of encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from backbay import Context, Tensor

from ...models.nn import Linear, Projection, Shape, Weights
from .norm import Norm
from .shape import EncoderShape, present

Activation: TypeAlias = Callable[[Context, Tensor], Tensor]
Attend: TypeAlias = Callable[[Context, Tensor, Tensor, Tensor], Tensor]
"""Attention of queries over keys and values, (head, heads, positions) of each."""
Module: TypeAlias = Callable[[Context, Tensor], Tensor]

FIRST_NORM = ("ln1", "layer_norm1", "attn_norm", "norm1")
SECOND_NORM = ("ln2", "layer_norm2", "ffn_norm", "norm2", "attn_post_norm")


def gelu(ctx: Context, x: Tensor) -> Tensor:
    return x.gelu(ctx)


def gelu_erf(ctx: Context, x: Tensor) -> Tensor:
    return x.gelu_erf(ctx)


def quick_gelu(ctx: Context, x: Tensor) -> Tensor:
    return x.quick_gelu(ctx)


@final
class FeedForward:
    """second(activation(first(x))). Old files call the first matrix ffn_down; their shapes tell."""

    def __init__(self, weights: Weights, shape: EncoderShape, activation: Activation) -> None:
        first = present(weights, "ffn_up", "mlp.fc1", "mlp.linear_fc1")
        names = [first, present(weights, "ffn_down", "mlp.fc2", "mlp.linear_fc2")]
        width, hidden = shape.width, shape.hidden
        if width != hidden and weights.extent("ffn_down.weight", 0) == width:
            names.reverse()
        self.first = Linear(weights, names[0], width, hidden)
        self.second = Linear(weights, names[1], hidden, width)
        self.activation = activation

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return self.second(ctx, self.activation(ctx, self.first(ctx, x)))


@final
class GatedFeedForward:
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, weights: Weights, shape: EncoderShape) -> None:
        self.gate = Linear(weights, "ffn_gate", shape.width, shape.hidden)
        self.up = Linear(weights, "ffn_up", shape.width, shape.hidden)
        self.down = Linear(weights, "ffn_down", shape.hidden, shape.width)

    def __call__(self, ctx: Context, x: Tensor) -> Tensor:
        return self.down(ctx, self.gate(ctx, x).silu(ctx, self.up(ctx, x)))


@final
class Block:
    """x + attention(norm(x)), then y + feed_forward(norm(y)); gates multiply what is added, if the block has them."""

    def __init__(
        self,
        weights: Weights,
        shape: EncoderShape,
        feed_forward: Module,
        *,
        root: bool = False,
        gated: bool = False,
    ) -> None:
        width, self.shape = shape.width, shape
        self.first_norm = Norm(weights, FIRST_NORM, width, shape.eps, root=root)
        self.second_norm = Norm(weights, SECOND_NORM, width, shape.eps, root=root)
        heads, head = shape.heads, shape.head
        self.project = Projection(weights, Shape(width, heads, heads, head, head, shape.hidden, 0, 0))
        self.output = Linear(weights, present(weights, "attn_out", "attn_output"), width, width)
        self.feed_forward = feed_forward
        self.attention_gate = weights.need("attn_gate", 1) if gated else None
        self.feed_forward_gate = weights.need("ffn_gate", 1) if gated else None

    def __call__(self, ctx: Context, x: Tensor, attend: Attend) -> Tensor:
        """(width, positions)"""
        h, positions = self.first_norm(ctx, x), x.dim(1)
        q, k, v = self.project(ctx, h)
        a = self.output(ctx, attend(ctx, q, k, v).reshape(ctx, self.shape.width, positions))
        x = x.add(ctx, a if self.attention_gate is None else a.mul(ctx, self.attention_gate))
        h = self.feed_forward(ctx, self.second_norm(ctx, x))
        return x.add(ctx, h if self.feed_forward_gate is None else h.mul(ctx, self.feed_forward_gate))
