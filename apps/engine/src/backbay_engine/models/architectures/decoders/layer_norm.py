"""Decoders with layer norms: GPT-2, StarCoder, and the models of Cohere."""

from __future__ import annotations

from typing import ClassVar, final

from backbay import Backend, Context, Tensor

from ....cache.attention.causal import CausalCache
from ....cache.contract import Cache
from ... import nn
from ...bases import Decoder
from ...batch import Batch
from ...keys import LOGIT_SCALE


class LayerNormDecoder(Decoder):
    """The last norm is a layer norm, too."""

    def final_norm(self, weights: nn.Weights) -> nn.LayerNorm:
        return nn.LayerNorm(weights, "output_norm", self.width)


@final
class Gpt2(LayerNormDecoder):
    """GPT-2 and StarCoder: biases, and a feed-forward without a gate; positions are learned, so keys cannot move."""

    def declare(self, weights: nn.Weights) -> None:
        self.positions = nn.Positions(weights, self.width)

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        attention = nn.Attention(here, shape, None)
        return nn.build_block(here, attention, nn.FeedForward(here, shape, "gelu"), norm=nn.LayerNorm)

    def begin(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        return x.add(ctx, self.positions(ctx, batch.positions))

    def fit(self, context: int) -> None:
        self.positions.fit(context)

    def new_cache(self) -> Cache:
        return CausalCache(None)


@final
class StarCoder2(LayerNormDecoder):
    """StarCoder 2: biases, and a feed-forward without a gate; positions are rotary."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        attention = nn.Attention(here, shape, nn.Rope(self.config, shape, "neox"))
        return nn.build_block(here, attention, nn.FeedForward(here, shape, "gelu"), norm=nn.LayerNorm)


class CommandR(LayerNormDecoder):
    """Command R: attention and feed-forward are parallel; the logits are scaled."""

    def __init__(self, backend: Backend) -> None:
        self.logit_scale = LOGIT_SCALE.of(backend.config, 1.0)
        super().__init__(backend)

    def block(self, weights: nn.Weights, layer: int) -> nn.ParallelBlock:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope = nn.Rope(self.config, shape, "normal") if self.rotates(layer) else None
        return nn.ParallelBlock(
            nn.LayerNorm(here, "attn_norm", shape.width),
            nn.Attention(here, shape, rope),
            nn.GatedFeedForward(here, shape),
        )

    def rotates(self, layer: int) -> bool:
        return True

    def score(self, ctx: Context, x: Tensor) -> Tensor:
        return super().score(ctx, x).scale(ctx, self.logit_scale)


@final
class Cohere2(CommandR):
    """Command R7B: blocks with a window know positions, and the others do not."""

    window_pattern: ClassVar[int | None] = 4

    def rotates(self, layer: int) -> bool:
        return self.slides[layer]
