"""GLM 4, dense."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, GatedFeedForward, Rope, Shape, Weights, sandwich


@final
class Glm4(Decoder):
    """Norms before and after each branch; half of each head is rotated."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "normal")
        here = weights.at(f"blk.{layer}.")
        attention = Attention(here, shape, rope)
        return sandwich(here, shape.width, attention, GatedFeedForward(here, shape))
