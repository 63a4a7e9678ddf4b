"""GPT-2 and StarCoder: positions are learned, so keys cannot move."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from ....cache.attention.causal import CausalCache
from ....cache.contract import Cache
from ...batch import Batch
from ...decoder import Decoder
from ...nn import Attention, Block, FeedForward, LayerNorm, Positions, Shape, Weights


@final
class Gpt2(Decoder):
    """Layer norms, biases, and a feed-forward without a gate."""

    def declare(self, weights: Weights) -> None:
        self.positions = Positions(weights, self.width)

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        return Block(
            LayerNorm(here, "attn_norm", shape.width),
            Attention(here, shape, None),
            LayerNorm(here, "ffn_norm", shape.width),
            FeedForward(here, shape, "gelu"),
        )

    def final_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, "output_norm", self.width)

    def embed(self, ctx: Context, batch: Batch) -> Tensor:
        return super().embed(ctx, batch).add(ctx, self.positions(ctx, batch.positions))

    def fit(self, context: int) -> None:
        self.positions.fit(context)

    def new_cache(self) -> Cache:
        return CausalCache(None)
