"""Qwen 2, 2-VL and 3, and Qwen 3 with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from backbay.gguf import Config

from ...decoder import Decoder
from ...keys import OLLAMA_SECTIONS, SECTIONS
from ...nn import Attention, Block, Factors, RMSNorm, Rope, Shape, Weights, feed_forward_of


@final
class Qwen2(Decoder):
    """Queries, keys and values have biases."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights, layer, norms=False)


@final
class Qwen2VL(Decoder):
    """The text side of Qwen 2-VL and 2.5-VL: positions have three axes. qwen25vl is Ollama's name for it."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights, layer, norms=False, sections=_sections(self.config))


@final
class Qwen3(Decoder):
    """Each head's query and key has a norm. The architecture qwen3moe adds experts."""

    def block(self, weights: Weights, layer: int) -> Block:
        return _block(weights, layer, norms=True)


def _sections(config: Config) -> Sequence[int]:
    """The pairs that take each axis: time, row, column, and one that is not used."""
    key = OLLAMA_SECTIONS if OLLAMA_SECTIONS.name in config else SECTIONS
    sections = key.of(config).tolist()
    if len(sections) not in (3, 4) or min(sections) < 0 or not any(sections[:3]):
        raise key.refuse(config, "three or four numbers of pairs")
    return [*sections, 0][:4]


def _block(weights: Weights, layer: int, *, norms: bool, sections: Sequence[int] | None = None) -> Block:
    shape = Shape.of(weights.config, layer)
    rope = Rope(weights.config, shape, "neox", factors=Factors.of(weights, shape), sections=sections)
    here = weights.at(f"blk.{layer}.")
    return Block(
        RMSNorm(here, "attn_norm", shape.width),
        Attention(here, shape, rope, norms=norms),
        RMSNorm(here, "ffn_norm", shape.width),
        feed_forward_of(here, layer),
    )
