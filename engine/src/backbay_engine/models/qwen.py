"""Qwen 2 and 3, and Qwen 3 with experts."""

from __future__ import annotations

from typing import final

from ..nn import Attention, Block, Experts, GatedFeedForward, RMSNorm, Rope, Shape, Weights
from .decoder import Decoder


@final
class Qwen2(Decoder):
    """Queries, keys and values have biases."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights.at(f"blk.{layer}."), Shape.of(self.config, layer), norms=False)


@final
class Qwen3(Decoder):
    """Each head's query and key is normed. Its larger kind, qwen3moe, has experts."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights.at(f"blk.{layer}."), Shape.of(self.config, layer), norms=True)


def _block(here: Weights, shape: Shape, *, norms: bool) -> Block:
    rope = Rope(here.config, shape, "neox")
    return Block(
        RMSNorm(here, "attn_norm", shape.width),
        Attention(here, shape, rope, norms=norms),
        RMSNorm(here, "ffn_norm", shape.width),
        Experts(here, shape) if shape.experts else GatedFeedForward(here, shape),
    )
