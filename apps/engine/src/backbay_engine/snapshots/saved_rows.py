"""The caller's own rows in snapshots: their places among the tokens that a cache holds, and in a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from ..media.rows import Rows
from ..steps.tokens import MediaSpan, MediaToken, PromptMedia, Token, ids_of, media_spans

ROWS = "rows."


@final
@dataclass(frozen=True)
class RowsSpan:
    """Tokens [begin, end) that rows stand for, the first of `count`; their content is a digest of all of them."""

    begin: int
    end: int
    count: int
    content: str

    @classmethod
    def of(cls, span: MediaSpan) -> Self | None:
        """The same; None if a picture or a sound is there, which stands elsewhere than a text would."""
        found = cls(span.begin, span.end, span.media.count, span.media.content.hex())
        alike = span.media == found.media and span.media.positions is None
        return found if alike else None

    @property
    def media(self) -> PromptMedia:
        return PromptMedia(bytes.fromhex(self.content), self.count, advance=self.count)


def tokens_with_rows(ids: Sequence[int], spans: Sequence[RowsSpan]) -> list[Token]:
    """The tokens of a cache, of their ids and of the places of rows."""
    tokens = list[Token](ids)
    for span in spans:
        media = span.media
        for row, id in enumerate(ids[span.begin : span.end]):
            tokens[span.begin + row] = MediaToken(id, media, row, row)
    return tokens


def checked_spans(facts: Sequence[Sequence[Any]], length: int) -> tuple[RowsSpan, ...]:
    """The places of rows among so many tokens, as a file has them; ValueError if they are none."""
    spans, at = list[RowsSpan](), 0
    for begin, end, count, content in facts:
        spans.append(span := RowsSpan(int(begin), int(end), int(count), str(content)))
        if not at <= span.begin < span.end <= length or span.end - span.begin > span.count:
            raise ValueError(f"{span} is no place among {length} tokens after {at}")
        _, at = bytes.fromhex(span.content), span.end
    return tuple(spans)


def prompt_with_rows(tokens: Sequence[Token], rows: Sequence[Rows]) -> tuple[Any, ...]:
    """A prompt that has these tokens, as `submit` takes it: ids and rows."""
    parts, at = list[Any](), 0
    for span, own in zip(media_spans(tokens), rows, strict=True):
        parts += [tuple(ids_of(tokens[at : span.begin])), own]
        at = span.end
    return tuple(part for part in (*parts, tuple(ids_of(tokens[at:]))) if part)


def packed_prompt(
    prompt: Sequence[Any],
) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float32]], list[int]]:
    """The ids of a prompt, zeros where rows stand, the rows by name, and where they begin."""
    ids, arrays, begins = list[int](), dict[str, NDArray[np.float32]](), list[int]()
    for part in prompt:
        if isinstance(part, Rows):
            arrays[f"{ROWS}{len(begins)}"] = part.values
            begins.append(len(ids))
            ids += [0] * part.tokens
        else:
            ids += [part] if isinstance(part, int) else part
    return np.array(ids, "<i4"), arrays, begins


def unpacked_prompt(
    ids: tuple[int, ...], arrays: dict[str, NDArray[Any]], begins: Sequence[int]
) -> tuple[Any, ...]:
    """The prompt of these; ValueError if they are none."""
    parts, at = list[Any](), 0
    for number, begin in enumerate(begins):
        rows = Rows(arrays[f"{ROWS}{number}"])
        if not at <= begin <= begin + rows.tokens <= len(ids):
            raise ValueError(f"{rows} at {begin} are not among {len(ids)} tokens after {at}")
        parts += [ids[at:begin], rows]
        at = begin + rows.tokens
    return tuple(part for part in (*parts, ids[at:]) if part) if begins else ids
