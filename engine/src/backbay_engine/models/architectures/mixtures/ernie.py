"""ERNIE 4.5, dense and with experts, which are chosen by odds plus a bias."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, RMSNorm, Rope, Shape, Weights, feed_forward_of


@final
class Ernie(Decoder):
    """The pairs of the rotary embedding are adjacent."""

    def block(self, weights: Weights, layer: int) -> Block:
        here = weights.at(f"blk.{layer}.")
        shape = Shape.of(self.config, layer)
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, Rope(self.config, shape, "normal")),
            RMSNorm(here, "ffn_norm", shape.width),
            feed_forward_of(here, layer),
        )
