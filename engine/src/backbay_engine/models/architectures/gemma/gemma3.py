"""Gemma 3, the text model."""

from __future__ import annotations

from typing import ClassVar, final

from ... import keys
from ...nn import Attention, Block, Factors, GatedFeedForward, Rope, Shape, Weights, block_count, sandwich
from .family import Gemma

LOCAL_BASE = 1e4
LARGEST = 62  # blocks of the 27B model, which scales queries by width / heads


class Gemma3(Gemma):
    """Most blocks have a window and a rotary base of their own."""

    window_pattern: ClassVar[int | None] = 6

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        if self.slides[layer]:
            base = keys.WINDOW_BASE.of(config, LOCAL_BASE)
            rope = Rope(config, shape, "neox", base=base, scaled=False)
        else:
            rope = Rope(config, shape, "neox", factors=Factors.of(weights, shape))
        per_head = shape.width // shape.heads if block_count(config) == LARGEST else shape.head
        scale = keys.SCALE.of(config, per_head**-0.5)
        here = weights.at(f"blk.{layer}.")
        attention = Attention(here, shape, rope, scale=scale, norms=True)
        return sandwich(here, shape.width, attention, GatedFeedForward(here, shape, "gelu"))


@final
class GemmaEmbedding(Gemma3):
    """Tokens see both directions; the result is a vector for each text."""

    causal = False
