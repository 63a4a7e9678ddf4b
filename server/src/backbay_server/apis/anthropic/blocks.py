"""From the pieces of an answer to Anthropic's blocks: as they grow, or whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

from backbay_engine import CallArguments, CallBegun, Piece, Reasoning, Text, ToolCall

from .answers import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Delta,
    Event,
    InputDelta,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    UseBlock,
)


@final
class GrowingBlocks:
    """The events of a stream. A block ends when a piece of another kind comes."""

    def __init__(self) -> None:
        self._index = -1
        self._open: type[Block] | None = None

    def grow(self, piece: Piece) -> Iterator[Event]:
        """The events of one piece."""
        match piece:
            case Text(text):
                yield from self._in(TextBlock, TextBlock(""))
                yield self._delta(TextDelta(text))
            case Reasoning(text):
                yield from self._in(ThinkingBlock, ThinkingBlock(""))
                yield self._delta(ThinkingDelta(text))
            case CallBegun(_, id, name):
                yield from self.end()
                yield from self._in(UseBlock, UseBlock(id, name, {}))
            case CallArguments(_, text):
                yield self._delta(InputDelta(text))

    def end(self) -> Iterator[Event]:
        """The end of the block that is open."""
        if self._open is ThinkingBlock:
            yield self._delta(SignatureDelta(""))
        if self._open is not None:
            yield BlockStop(self._index)
        self._open = None

    def _in(self, kind: type[Block], block: Block) -> Iterator[Event]:
        if self._open is not kind:
            yield from self.end()
            self._index, self._open = self._index + 1, kind
            yield BlockStart(self._index, block)

    def _delta(self, delta: Delta) -> Event:
        return BlockDelta(self._index, delta)


def whole_blocks(pieces: Iterable[Piece]) -> list[Block]:
    """The blocks of a whole answer."""
    blocks: list[Block] = []
    arguments: dict[int, list[str]] = {}  # by the place of the block
    for piece in pieces:
        last = blocks[-1] if blocks else None
        match piece:
            case Text(text) if isinstance(last, TextBlock):
                last.text += text
            case Text(text):
                blocks.append(TextBlock(text))
            case Reasoning(text) if isinstance(last, ThinkingBlock):
                last.thinking += text
            case Reasoning(text):
                blocks.append(ThinkingBlock(text))
            case CallBegun(_, id, name):
                arguments[len(blocks)] = []
                blocks.append(UseBlock(id, name, {}))
            case CallArguments(_, text):
                arguments[len(blocks) - 1].append(text)
    for place, texts in arguments.items():
        block = blocks[place]
        assert isinstance(block, UseBlock)
        block.input = ToolCall(block.id, block.name, "".join(texts)).values
    return blocks
