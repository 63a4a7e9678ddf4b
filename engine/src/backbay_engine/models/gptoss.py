"""gpt-oss."""

from __future__ import annotations

from typing import final

from backbay import Backend, Context, Tensor

from ..nn import Attention, Block, Experts, RMSNorm, Rope, Shape, Weights
from .decoder import Decoder

ALPHA, LIMIT = 1.702, 7.0


def activation(ctx: Context, gate: Tensor, up: Tensor) -> Tensor:
    return gate.swiglu(ctx, up, ALPHA, LIMIT)


@final
class GptOss(Decoder):
    """Experts with biases; each head may look away, at a sink."""

    window_pattern = 2

    def __init__(self, backend: Backend) -> None:
        config, shape = backend.config, Shape.of(backend.config)
        constants = backend.new_context()
        self.rope = self.local_rope = Rope(config, shape, "neox", exact=constants)
        if "rope.freq_base_swa" in config:
            base = config.float("rope.freq_base_swa")
            self.local_rope = Rope(config, shape, "neox", base=base, exact=constants)
        super().__init__(backend)

    def block(self, weights: Weights, layer: int) -> Block:
        shape = Shape.of(self.config, layer)
        here = weights.at(f"blk.{layer}.")
        rope = self.local_rope if self.slides[layer] else self.rope
        return Block(
            RMSNorm(here, "attn_norm", shape.width),
            Attention(here, shape, rope, sinks=True, biased=True),
            RMSNorm(here, "post_attention_norm", shape.width, or_else=("ffn_norm",)),
            Experts(here, shape, activation, biased=True),
        )
