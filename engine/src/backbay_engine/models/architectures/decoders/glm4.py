"""GLM 4, dense."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, GatedFeedForward, RMSNorm, Rope, Shape, Weights


@final
class Glm4(Decoder):
    """Norms before and after each branch; half of each head is rotated."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "normal")
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope),
            RMSNorm(here, "ffn_norm", shape.width),
            GatedFeedForward(here, shape),
            RMSNorm(here, "post_attention_norm", shape.width),
            RMSNorm(here, "post_ffw_norm", shape.width),
        )
