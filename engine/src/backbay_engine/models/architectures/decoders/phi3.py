"""Phi 3 and 4: joint weights, and one set of rotary factors for short contexts and another for long ones."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, Factors, GatedFeedForward, RMSNorm, Rope, Shape, Weights


@final
class Phi3(Decoder):
    """A file may have a window for all blocks."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "neox", factors=Factors.of(weights, shape))
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope),
            RMSNorm(here, "ffn_norm", shape.width),
            GatedFeedForward(here, shape),
        )
