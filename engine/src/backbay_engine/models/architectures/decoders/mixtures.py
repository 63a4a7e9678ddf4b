"""Mixtures of experts by design: the DeepSeek models and gpt-oss."""

from __future__ import annotations

from math import log
from typing import final

from backbay import Backend, Context, Tensor

from ... import keys, nn
from ...decoder import Decoder

ALPHA, LIMIT = 1.702, 7.0  # of gpt-oss' activation


@final
class DeepSeek2(Decoder):
    """DeepSeek V2, V3 and R1, Kimi K2, and other models with latent attention and experts.

    The first blocks have no experts. Yarn sharpens the scores, and magnifies neither queries nor keys.
    """

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        sharpness = keys.YARN_SHARPNESS.of(config, 0.0)
        rope = nn.Rope(config, shape, "normal", plain=sharpness > 0)
        head, _ = nn.head_lengths(weights, shape)
        scale = (1 + sharpness * log(1 / rope.scale)) ** 2 * head**-0.5
        gating = nn.Gating.SIGMOID if "exp_probs_b.bias" in here else nn.Gating.SOFTMAX
        experts = nn.feed_forward_of(here, layer, gating=gating, normalized=False)
        return nn.build_block(here, nn.LatentAttention(here, shape, rope, scale=scale), experts)


@final
class GptOss(Decoder):
    """Experts with biases; each head has an attention sink."""

    window_pattern = 2

    def __init__(self, backend: Backend) -> None:
        self.constants = backend.new_context()
        super().__init__(backend)

    def block(self, weights: nn.Weights, layer: int) -> nn.Block:
        config, shape = self.config, nn.Shape.of(self.config, layer)
        base = keys.WINDOW_BASE.of(config, None) if self.slides[layer] else None
        rope = nn.Rope(config, shape, "neox", base=base, exact=self.constants.layer(layer))
        here = weights.at(f"blk.{layer}.")
        attention = nn.Attention(here, shape, rope, sinks=True, biased=True)
        experts = nn.Experts(here, shape, activation, biased=True)
        second = "ffn_norm" if "ffn_norm.weight" in here else "post_attention_norm"
        return nn.build_block(here, attention, experts, second=second)


def activation(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
    return gate.swiglu(ctx, up, ALPHA, LIMIT)
