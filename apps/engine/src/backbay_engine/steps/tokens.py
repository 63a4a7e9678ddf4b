"""The tokens of a prompt: ids of the vocabulary, tokens that rows replace, and those of a text for an encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import numpy as np

from .step import Ints

LAST = 1 << 30  # marks the last token of a text for an encoder: a text that goes on is another text


@final
@dataclass(frozen=True, slots=True)
class PromptMedia:
    """A picture, a sound or the caller's own rows in a prompt, without the rows. Those of one content are equal, wherever
    they stand.

    count        its tokens, separators between rows included
    sees_itself  the tokens see each other: they go through the model in one step
    positions    (count, 3): M-RoPE's positions (time, row, column), from 0 for the first token; None: one further each
    advance      how far the text's position moves over it
    crosses      rows for cross attention, which replace no embeddings; 0: there are none
    visible      the first of these rows, which tokens after the picture see
    ahead        the pictures that its tokens see though they come later: before others, they are other tokens
    """

    content: bytes
    count: int
    sees_itself: bool = False
    positions: Ints | None = field(default=None, compare=False)
    advance: int = 0
    crosses: int = 0
    visible: int = 0
    ahead: tuple[bytes, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class MediaToken:
    """A token of a picture, a sound or rows.

    index   its place among their tokens
    row     the row that replaces its embedding; None: a separator, with an embedding of its own
    """

    id: int
    media: PromptMedia
    index: int
    row: int | None


@final
@dataclass(frozen=True, slots=True)
class MediaAwareToken:
    """A token before all pictures that cross attention lets it see: with others, it is another token."""

    id: int
    pictures: tuple[bytes, ...]


Token: TypeAlias = int | MediaToken | MediaAwareToken


@final
@dataclass(frozen=True)
class MediaSpan:
    """Tokens [begin, end) of a sequence that belong to one picture, sound or run of rows."""

    begin: int
    end: int
    media: PromptMedia


def ids_of(tokens: Sequence[Token]) -> list[int]:
    """The ids of tokens; a token that a row replaces has the placeholder's id."""
    return [token if isinstance(token, int) else token.id for token in tokens]


def media_spans(tokens: Sequence[Token]) -> Iterator[MediaSpan]:
    """The pictures of a sequence, or the parts of them that are in it, in their order."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if isinstance(token, MediaToken):
            end = min(len(tokens), at + token.media.count - token.index)
            yield MediaSpan(at, end, token.media)
            at = end
        else:
            at += 1


def mark_visible_pictures(tokens: Sequence[Token]) -> list[Token]:
    """The tokens of a prompt whose pictures go to cross attention: what is before the first picture sees them all."""
    spans = [span for span in media_spans(tokens) if span.media.crosses]
    if not spans or not spans[0].begin:
        return list(tokens)
    contents, first = tuple(span.media.content for span in spans), tokens[0]
    if isinstance(first, MediaToken):
        here, end = replace(first.media, ahead=contents), first.media.count
        own = [replace(each, media=here) for each in tokens[:end] if isinstance(each, MediaToken)]
        return [*own, *tokens[end:]]
    (id,) = ids_of([first])
    return [MediaAwareToken(id, contents), *tokens[1:]]


def before_picture(tokens: Sequence[Token], at: int) -> int:
    """The index of the first token of a picture whose tokens see each other, if a cut before `tokens[at]` parts them;
    else `at`.
    """
    token = tokens[at] if at < len(tokens) else 0
    return at - token.index if isinstance(token, MediaToken) and token.media.sees_itself else at


def mrope_positions(tokens: Sequence[Token]) -> tuple[Ints, int]:
    """M-RoPE's positions of a whole sequence, (3, tokens): time, row and column; and the position after it."""
    axes = np.empty((3, len(tokens)), np.int32)
    at = position = 0
    for span in media_spans(tokens):
        position = _count_on(axes[:, at : span.begin], position)
        here, positions = axes[:, span.begin : span.end], span.media.positions
        if positions is None:
            position = _count_on(here, position)
        else:
            here[:] = position + positions[: span.end - span.begin].T
            position += span.media.advance
        at = span.end
    return axes, _count_on(axes[:, at:], position)


def _count_on(axes: Ints, position: int) -> int:
    """Positions of tokens that are one further each; the position after them."""
    end = position + int(axes.shape[1])
    axes[:] = np.arange(position, end, dtype=np.int32)
    return end


def encoder_tokens(ids: Sequence[int]) -> list[int]:
    """The tokens of a text for the encoder, at the begin of a sequence: numbers below 0."""
    return [~token for token in ids[:-1]] + [~(token | LAST) for token in ids[-1:]]


def encoder_length(sequence: Sequence[Token]) -> int:
    """The number of tokens for the encoder that a sequence begins with."""
    return next(
        (at for at, token in enumerate(sequence) if not isinstance(token, int) or token >= 0), len(sequence)
    )


def text_ids(tokens: Ints) -> Ints:
    return np.asarray(~tokens & (LAST - 1), np.int32)


def plain_ids(tokens: Sequence[int]) -> list[int]:
    """The ids of tokens, for the encoder or not."""
    return [token if token >= 0 else ~token & (LAST - 1) for token in tokens]
