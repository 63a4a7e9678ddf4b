"""Gemma 2."""

from __future__ import annotations

from typing import final

from ... import keys
from ...nn import Attention, Block, GatedFeedForward, Rope, Shape, Weights, block_count, sandwich
from .family import Gemma

LARGEST = 46  # blocks of the 27B model, which scales queries by width / heads


@final
class Gemma2(Gemma):
    """Scores of the attention are capped; every other block has a window."""

    window_pattern = 2

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        per_head = shape.width // shape.heads if block_count(config) == LARGEST else shape.head
        here = weights.at(f"blk.{layer}.")
        attention = Attention(
            here,
            shape,
            Rope(config, shape, "neox"),
            scale=keys.SCALE.of(config, per_head**-0.5),
            softcap=keys.SOFTCAP.of(config, 0.0),
        )
        return sandwich(here, shape.width, attention, GatedFeedForward(here, shape, "gelu"))
