"""Llama, and decoders that differ from it in the rotary embedding, the norms or the experts."""

from __future__ import annotations

from typing import final

from backbay.gguf import number

from ... import nn
from ...bases import Decoder

TEMPERATURE = number("attention.temperature_scale", 0, 1e3)
UNROTATED = 4  # of so many blocks of SmolLM 3, the last knows no positions


@final
class Llama(Decoder):
    """Llama 1 to 3, Mistral, and Mixtral, which has experts.

    Converters have reordered queries and keys, so that the pairs of the rotary embedding are adjacent.
    """

    def declare(self, weights: nn.Weights) -> None:
        if TEMPERATURE.of(self.config, 0.0):
            raise TEMPERATURE.refuse(self.config, "0, since queries do not depend on positions here,")

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope = nn.Rope(self.config, shape, "normal", factors=nn.Factors.of(weights, shape))
        return nn.build_block(here, nn.Attention(here, shape, rope), nn.feed_forward_of(here, layer))


@final
class SmolLM3(Decoder):
    """Every fourth block knows no positions."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape, rope = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer), None
        if (layer + 1) % UNROTATED:
            rope = nn.Rope(self.config, shape, "normal", factors=nn.Factors.of(weights, shape))
        return nn.build_block(here, nn.Attention(here, shape, rope), nn.GatedFeedForward(here, shape))


@final
class Phi3(Decoder):
    """Phi 3 and 4: joint weights, and one set of rotary factors for short contexts and another for long ones."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope = nn.Rope(self.config, shape, "neox", factors=nn.Factors.of(weights, shape))
        return nn.build_block(here, nn.Attention(here, shape, rope), nn.GatedFeedForward(here, shape))


@final
class Ernie(Decoder):
    """ERNIE 4.5, dense and with experts, which are chosen by odds plus a bias."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        attention = nn.Attention(here, shape, nn.Rope(self.config, shape, "normal"))
        return nn.build_block(here, attention, nn.feed_forward_of(here, layer))


@final
class Glm4(Decoder):
    """GLM 4, dense: norms before and after each branch; half of each head is rotated."""

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        attention = nn.Attention(here, shape, nn.Rope(self.config, shape, "normal"))
        return nn.build_block(here, attention, nn.GatedFeedForward(here, shape), after=True)


@final
class Olmo2(Decoder):
    """OLMo 2 and 3: norms come after attention and feed-forward only. Blocks with a window do not extend the context."""

    window_pattern = 4

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope = nn.Rope(self.config, shape, "neox", scaled=not self.slides[layer])
        return nn.Block(
            None,
            nn.Attention(here, shape, rope, norms="joint"),
            None,
            nn.GatedFeedForward(here, shape),
            nn.RMSNorm(here, "post_attention_norm", shape.width),
            nn.RMSNorm(here, "post_ffw_norm", shape.width),
        )
