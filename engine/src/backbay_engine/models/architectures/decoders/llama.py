"""Llama, and decoders that differ from it in the rotary embedding, the norms or the experts."""

from __future__ import annotations

from typing import final

from backbay.gguf import number

from ...decoder import Decoder
from ...nn import (
    Attention,
    Block,
    Factors,
    GatedFeedForward,
    Gating,
    RMSNorm,
    Rope,
    Shape,
    Weights,
    build_block,
    feed_forward_of,
)

TEMPERATURE = number("attention.temperature_scale", 0, 1e3)
UNROTATED = 4  # of so many blocks of SmolLM 3, the last knows no positions


@final
class Llama(Decoder):
    """Llama 1 to 3, Mistral, and Mixtral, which has experts.

    Converters have reordered queries and keys, so that the pairs of the rotary embedding are adjacent.
    """

    def declare(self, weights: Weights) -> None:
        if TEMPERATURE.of(self.config, 0.0):
            raise TEMPERATURE.refuse(self.config, "0, since queries do not depend on positions here,")

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape = weights.at(f"blk.{layer}."), Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "normal", factors=Factors.of(weights, shape))
        return build_block(here, Attention(here, shape, rope), feed_forward_of(here, layer))


@final
class SmolLM3(Decoder):
    """Every fourth block knows no positions."""

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape, rope = weights.at(f"blk.{layer}."), Shape.of(self.config, layer), None
        if (layer + 1) % UNROTATED:
            rope = Rope(self.config, shape, "normal", factors=Factors.of(weights, shape))
        return build_block(here, Attention(here, shape, rope), GatedFeedForward(here, shape))


@final
class Phi3(Decoder):
    """Phi 3 and 4: joint weights, and one set of rotary factors for short contexts and another for long ones."""

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape = weights.at(f"blk.{layer}."), Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "neox", factors=Factors.of(weights, shape))
        return build_block(here, Attention(here, shape, rope), GatedFeedForward(here, shape))


@final
class Ernie(Decoder):
    """ERNIE 4.5, dense and with experts, which are chosen by odds plus a bias."""

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape = weights.at(f"blk.{layer}."), Shape.of(self.config, layer)
        attention = Attention(here, shape, Rope(self.config, shape, "normal"))
        return build_block(here, attention, feed_forward_of(here, layer))


@final
class Glm4(Decoder):
    """GLM 4, dense: norms before and after each branch; half of each head is rotated."""

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape = weights.at(f"blk.{layer}."), Shape.of(self.config, layer)
        attention = Attention(here, shape, Rope(self.config, shape, "normal"))
        return build_block(here, attention, GatedFeedForward(here, shape), after=True)


@final
class Glm4Moe(Decoder):
    """GLM 4.5 and 4.6: experts, routed by sigmoids; the larger models have norms of queries and keys."""

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape = weights.at(f"blk.{layer}."), Shape.of(self.config, layer)
        rope, norms = Rope(self.config, shape, "neox"), "attn_q_norm.weight" in here
        experts = feed_forward_of(here, layer, gating=Gating.SIGMOID)
        return build_block(
            here, Attention(here, shape, rope, norms=norms), experts, second="post_attention_norm"
        )


@final
class Olmo2(Decoder):
    """OLMo 2 and 3: norms come after attention and feed-forward only. Blocks with a window do not extend the context."""

    window_pattern = 4

    def block(self, weights: Weights, layer: int) -> Block:
        here, shape = weights.at(f"blk.{layer}."), Shape.of(self.config, layer)
        rope = Rope(self.config, shape, "neox", scaled=not self.slides[layer])
        return Block(
            None,
            Attention(here, shape, rope, norms="joint"),
            None,
            GatedFeedForward(here, shape),
            RMSNorm(here, "post_attention_norm", shape.width),
            RMSNorm(here, "post_ffw_norm", shape.width),
        )
