"""Nemotron-H, dense and with experts: each block is a Mamba 2, an attention or a feed-forward alone."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor
from backbay.gguf import whole

from ... import nn
from ...batch import Batch
from ...decoder import HybridDecoder

HIDDEN = whole("feed_forward_length")  # 0: the block has no feed-forward


@final
class Block:
    """x + part(norm(x))"""

    rope: nn.Rope | None = None  # the model knows no positions

    def __init__(self, weights: nn.Weights, width: int, part: nn.Mixer | nn.FeedForward | nn.Experts) -> None:
        self.norm, self.part = nn.RMSNorm(weights, "attn_norm", width), part

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        h = self.norm(ctx, x)
        x = batch.select(ctx, x) if last else x
        if isinstance(self.part, nn.FeedForward | nn.Experts):
            return x.add(ctx, self.part(ctx, batch.select(ctx, h) if last else h))
        return x.add(ctx, self.part(ctx, layer, h, batch, last=last))


@final
class NemotronH(HybridDecoder):
    """Feed-forwards and experts have no gates."""

    def recurs(self, layer: int) -> bool:
        return not nn.attends(self.config, layer) and not self.feeds(layer)

    def feeds(self, layer: int) -> bool:
        return HIDDEN.of(self.config, layer=layer) > 0

    def block(self, weights: nn.Weights, layer: int) -> Block:
        here, config = weights.at(f"blk.{layer}."), self.config
        part: nn.Mixer | nn.FeedForward | nn.Experts
        if self.recurs(layer):
            part = nn.Mamba2(here, nn.StateShape.of(config))
        elif not self.feeds(layer):
            part = nn.Attention(here, nn.Shape.of(config, layer, plain=True, feeds=False), None)
        else:
            shape = nn.Shape.of(config, layer, attends=False)
            if shape.experts:
                routing = nn.Routing.of(config, shape, gating=nn.Gating.SIGMOID)
                part = nn.Experts(here, shape, nn.ACTIVATIONS["relu_sqr"], routing=routing, gated=False)
            else:
                part = nn.FeedForward(here, shape, "relu_sqr")
        return Block(here, self.width, part)
