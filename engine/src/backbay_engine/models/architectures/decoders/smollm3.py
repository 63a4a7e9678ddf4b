"""SmolLM 3."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, Factors, GatedFeedForward, RMSNorm, Rope, Shape, Weights

EVERY = 4


@final
class SmolLM3(Decoder):
    """Every fourth block knows no positions."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = None
        if (layer + 1) % EVERY:
            rope = Rope(self.config, shape, "normal", factors=Factors.of(weights, shape))
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope),
            RMSNorm(here, "ffn_norm", shape.width),
            GatedFeedForward(here, shape),
        )
