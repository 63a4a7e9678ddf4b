"""Qwen 2, 2-VL, 3 and 3-VL, and Qwen 3 and 3-VL with experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from backbay import Backend, Context, Tensor
from backbay.gguf import Config

from ... import nn
from ...bases import Decoder, DecoderBlock
from ...batch import Batch
from ...keys import DEEPSTACK, OLLAMA_DEEPSTACK, OLLAMA_SECTIONS, SECTIONS

PUBLISHED_SECTIONS = (24, 20, 20, 0)  # Ollama's files state none


class Qwen2(Decoder):
    """Queries, keys and values have biases."""

    norms: ClassVar[bool] = False

    def block(self, weights: nn.Weights, layer: int) -> DecoderBlock:
        here, shape = weights.at(f"blk.{layer}."), nn.Shape.of(self.config, layer)
        rope = self.rope(shape, nn.Factors.of(weights, shape), layer)
        return nn.build_block(
            here, nn.Attention(here, shape, rope, norms=self.norms), nn.feed_forward_of(here, layer)
        )

    def rope(self, shape: nn.Shape, factors: nn.Factors, layer: int) -> nn.Rope:
        return nn.Rope(self.config, shape, "neox", factors=factors)


@final
class Qwen2VL(Qwen2):
    """The text side of Qwen 2-VL and 2.5-VL: positions have three axes. qwen25vl is Ollama's name for it."""

    def rope(self, shape: nn.Shape, factors: nn.Factors, layer: int) -> nn.Rope:
        return nn.Rope(self.config, shape, "neox", factors=factors, sections=_sections(self.config))


class Qwen3(Qwen2):
    """Each head's query and key has a norm. The architecture qwen3moe adds experts."""

    norms = True


@final
class Qwen3VL(Qwen3):
    """The text side of Qwen 3-VL: the axes of positions take turns. The architecture qwen3vlmoe adds experts."""

    def __init__(self, backend: Backend) -> None:
        self.constants = backend.new_context()
        super().__init__(backend)

    def block(self, weights: nn.Weights, layer: int) -> DecoderBlock:
        block = super().block(weights, layer)
        return DeepstackBlock(block, layer + 1) if layer < deepstack_blocks(self.config) else block

    @property
    def row_widths(self) -> tuple[int, ...]:
        further = deepstack_blocks(self.config)
        return (self.width, self.width * (1 + further)) if further else (self.width,)

    def rope(self, shape: nn.Shape, factors: nn.Factors, layer: int) -> nn.Rope:
        sections, in_turn = interleaved_sections(self.config), self.constants.layer(layer)
        return nn.Rope(self.config, shape, "neox", factors=factors, sections=sections, in_turn=in_turn)


@final
@dataclass(frozen=True)
class DeepstackBlock:
    """A block to whose result a further vector of pictures' rows is added."""

    inner: DecoderBlock
    number: int

    @property
    def rope(self) -> nn.Rope | None:
        return self.inner.rope

    def __call__(self, ctx: Context, layer: int, x: Tensor, batch: Batch, *, last: bool) -> Tensor:
        further = batch.further(ctx, self.number, x.dim(0))
        x = self.inner(ctx, layer, x, batch, last=last)
        if further is None:
            return x
        return x.add(ctx, batch.select(ctx, further) if last else further)


def deepstack_blocks(config: Config) -> int:
    """The first blocks, to whose results further vectors of pictures' rows are added."""
    listed = OLLAMA_DEEPSTACK.of(config, None)
    return DEEPSTACK.of(config, 0 if listed is None else len(listed))


def interleaved_sections(config: Config) -> Sequence[int]:
    """The pairs that take each axis in turn; those of the published models, if a file states none."""
    stated = any(key.name in config for key in (SECTIONS, OLLAMA_SECTIONS))
    return _sections(config) if stated else PUBLISHED_SECTIONS


def _sections(config: Config) -> Sequence[int]:
    """The pairs that take each axis: time, row, column, and one that is not used."""
    key = OLLAMA_SECTIONS if OLLAMA_SECTIONS.name in config else SECTIONS
    sections = key.of(config).tolist()
    if len(sections) not in (3, 4) or min(sections) < 0 or not any(sections[:3]):
        raise key.refuse(config, "three or four numbers of pairs")
    return [*sections, 0][:4]
