"""Qwen 2 and 3, and Qwen 3 with experts."""

from __future__ import annotations

from typing import final

from ...decoder import Decoder
from ...nn import Attention, Block, Factors, RMSNorm, Rope, Shape, Weights, feed_forward_of


@final
class Qwen2(Decoder):
    """Queries, keys and values have biases."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights, layer, norms=False)


@final
class Qwen3(Decoder):
    """Each head's query and key has a norm. The architecture qwen3moe adds experts."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights, layer, norms=True)


def _block(weights: Weights, layer: int, *, norms: bool) -> Block:
    shape = Shape.of(weights.config, layer)
    rope = Rope(weights.config, shape, "neox", factors=Factors.of(weights, shape))
    here = weights.at(f"blk.{layer}.")
    return Block(
        RMSNorm(here, "attn_norm", shape.width),
        Attention(here, shape, rope, norms=norms),
        RMSNorm(here, "ffn_norm", shape.width),
        feed_forward_of(here, layer),
    )
