"""Llama 1 to 3, Mistral, and Mixtral, which has experts."""

from __future__ import annotations

from typing import final

from backbay.gguf import number

from ...decoder import Decoder
from ...nn import Attention, Block, Factors, RMSNorm, Rope, Shape, Weights, feed_forward_of

TEMPERATURE = number("attention.temperature_scale", 0, 1e3)


@final
class Llama(Decoder):
    """Converters have reordered queries and keys, so that the pairs of the rotary embedding are adjacent."""

    def declare(self, weights: Weights) -> None:
        if TEMPERATURE.of(self.config, 0.0):
            raise TEMPERATURE.refuse(self.config, "0, since queries do not depend on positions here,")

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "normal", factors=Factors.of(weights, shape))
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope),
            RMSNorm(here, "ffn_norm", shape.width),
            feed_forward_of(here, layer),
        )
