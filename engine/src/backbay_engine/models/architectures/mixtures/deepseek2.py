"""DeepSeek V2, V3 and R1, Kimi K2, and other models with latent attention and experts."""

from __future__ import annotations

from math import log
from typing import final

from ... import keys
from ...decoder import Decoder
from ...nn import Block, Gating, LatentAttention, RMSNorm, Rope, Shape, Weights, feed_forward_of, head_lengths


@final
class DeepSeek2(Decoder):
    """The first blocks have no experts. Yarn sharpens the scores, and magnifies neither queries nor keys."""

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        sharpness = keys.YARN_SHARPNESS.of(config, 0.0)
        rope = Rope(config, shape, "normal", plain=sharpness > 0)
        head, _ = head_lengths(weights, shape)
        scale = (1 + sharpness * log(1 / rope.scale)) ** 2 * head**-0.5
        gating = Gating.SIGMOID if "exp_probs_b.bias" in here else Gating.SOFTMAX
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            LatentAttention(here, shape, rope, scale=scale),
            RMSNorm(here, "ffn_norm", shape.width),
            feed_forward_of(here, layer, gating=gating, normalized=False),
        )
