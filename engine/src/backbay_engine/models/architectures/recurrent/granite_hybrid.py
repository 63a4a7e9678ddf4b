"""Granite 4: Mamba 2 between blocks with attention, dense and with experts."""

from __future__ import annotations

from typing import final

from backbay.gguf import flag

from ... import keys
from ...hybrid import HybridDecoder
from ...nn import (
    Attention,
    Block,
    Mamba2,
    Mixer,
    RMSNorm,
    Rope,
    Shape,
    StateShape,
    Weights,
    attends,
    feed_forward_of,
)
from ..decoders.granite import ScaledDecoder

ROTATES = flag("rope.scaling.finetuned")  # false: the model knows no positions


@final
class GraniteHybrid(ScaledDecoder, HybridDecoder):
    """The scores of the attention have a scale, too."""

    def recurs(self, layer: int) -> bool:
        return not attends(self.config, layer)

    def block(self, weights: Weights, layer: int) -> Block:
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", self.width),
            self.mixer(here, layer),
            RMSNorm(here, "ffn_norm", self.width),
            feed_forward_of(here, layer),
            residual_scale=self.residual_scale,
        )

    def mixer(self, weights: Weights, layer: int) -> Mixer:
        config = self.config
        if self.recurs(layer):
            return Mamba2(weights, StateShape.of(config))
        shape = Shape.of(config, layer, feeds=False)
        rope = Rope(config, shape, "normal") if ROTATES.of(config, True) else None
        return Attention(weights, shape, rope, scale=keys.SCALE.of(config, shape.head**-0.5))
