"""GLM 4.5 and 4.6, with experts."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, Gating, RMSNorm, Rope, Shape, Weights, feed_forward_of


@final
class Glm4Moe(Decoder):
    """Routing by sigmoids; the larger models have norms of queries and keys."""

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        rope = Rope(self.config, shape, "neox")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope, norms="attn_q_norm.weight" in here),
            RMSNorm(here, "post_attention_norm", shape.width),
            feed_forward_of(here, layer, gating=Gating.SIGMOID),
        )
