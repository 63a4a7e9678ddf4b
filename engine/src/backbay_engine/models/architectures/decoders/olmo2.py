"""OLMo 2 and 3."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, GatedFeedForward, RMSNorm, Rope, Shape, Weights


@final
class Olmo2(Decoder):
    """Norms come after attention and feed-forward only. Blocks with a window do not extend the context."""

    window_pattern = 4

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "neox", scaled=not self.slides[layer])
        here = weights.at(f"blk.{layer}.")
        return Block(
            None,
            Attention(here, shape, rope, norms="joint"),
            None,
            GatedFeedForward(here, shape),
            RMSNorm(here, "post_attention_norm", shape.width),
            RMSNorm(here, "post_ffw_norm", shape.width),
        )
