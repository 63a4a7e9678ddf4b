"""Nemotron-H, dense and with experts: each block is a Mamba 2, an attention or a feed-forward alone."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import whole

from ...batch import Batch
from ...hybrid import HybridDecoder
from ...nn import (
    ACTIVATIONS,
    Attention,
    Experts,
    FeedForward,
    Gating,
    Mamba2,
    Mixer,
    RMSNorm,
    Rope,
    Routing,
    Shape,
    StateShape,
    Weights,
    attends,
)

HIDDEN = whole("feed_forward_length")  # 0: the block has no feed-forward


@final
class Block:
    """x + part(norm(x))"""

    rope: Rope | None = None  # the model knows no positions

    def __init__(self, weights: Weights, width: int, part: Mixer | FeedForward | Experts) -> None:
        self.norm, self.part = RMSNorm(weights, "attn_norm", width), part

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        h = self.norm(ctx, x)
        x = batch.select(ctx, x) if last else x
        if isinstance(self.part, FeedForward | Experts):
            return x.add(ctx, self.part(ctx, batch.select(ctx, h) if last else h))
        return x.add(ctx, self.part(ctx, layer, h, batch, last=last))


@final
class NemotronH(HybridDecoder):
    """Feed-forwards and experts have no gates."""

    def recurs(self, layer: int) -> bool:
        return not attends(self.config, layer) and not self.feeds(layer)

    def feeds(self, layer: int) -> bool:
        return HIDDEN.of(self.config, layer=layer) > 0

    def block(self, weights: Weights, layer: int) -> Block:
        here, config = weights.at(f"blk.{layer}."), self.config
        part: Mixer | FeedForward | Experts
        if self.recurs(layer):
            part = Mamba2(here, StateShape.of(config))
        elif not self.feeds(layer):
            part = Attention(here, Shape.of(config, layer, plain=True, feeds=False), None)
        else:
            shape = Shape.of(config, layer, attends=False)
            if shape.experts:
                routing = Routing.of(config, shape, gating=Gating.SIGMOID)
                part = Experts(here, shape, ACTIVATIONS["relu_sqr"], routing=routing, gated=False)
            else:
                part = FeedForward(here, shape, "relu_sqr")
        return Block(here, self.width, part)
