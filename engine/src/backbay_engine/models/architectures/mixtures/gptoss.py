"""gpt-oss."""

from __future__ import annotations

from typing import final

from backbay import Backend, Context, Tensor

from ... import keys
from ...decoder import Decoder
from ...nn import Attention, Block, Experts, RMSNorm, Rope, Shape, Weights

ALPHA, LIMIT = 1.702, 7.0


def activation(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
    return gate.swiglu(ctx, up, ALPHA, LIMIT)


@final
class GptOss(Decoder):
    """Experts with biases; each head has an attention sink."""

    window_pattern = 2

    def __init__(self, backend: Backend) -> None:
        self.constants = backend.new_context()
        super().__init__(backend)

    def block(self, weights: Weights, layer: int) -> Block:
        config, shape = self.config, Shape.of(self.config, layer)
        base = keys.WINDOW_BASE.of(config, None) if self.slides[layer] else None
        rope = Rope(config, shape, "neox", base=base, exact=self.constants.layer(layer))
        here = weights.at(f"blk.{layer}.")
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope, sinks=True, biased=True),
            RMSNorm(here, "post_attention_norm", shape.width, or_else=("ffn_norm",)),
            Experts(here, shape, activation, biased=True),
        )
