"""StarCoder 2."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, FeedForward, LayerNorm, Rope, Shape, Weights


@final
class StarCoder2(Decoder):
    """Layer norms, biases, and a feed-forward without a gate."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        return Block(
            LayerNorm(here, "attn_norm", shape.width),
            Attention(here, shape, Rope(self.config, shape, "neox")),
            LayerNorm(here, "ffn_norm", shape.width),
            FeedForward(here, shape, "gelu"),
        )

    def final_norm(self, weights: Weights) -> LayerNorm:
        return LayerNorm(weights, "output_norm", self.width)
