"""The parts of a prompt: texts, token ids and pictures, and the tokens that they become."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from numbers import Number
from typing import TypeAlias, final

import numpy as np

from ..arguments import token_ids
from ..errors import RequestError
from ..steps.tokens import Picture, PictureToken, Token
from ..text.tokenizers import Tokenizer
from .contract import Placed
from .picture import Image, image_of
from .prepared import Prepared

Part: TypeAlias = str | list[int] | Image | Prepared


@final
@dataclass(frozen=True)
class Parts:
    """A prompt of several parts.

    begins  whether the prompt is a sequence of its own: special tokens that the model expects at the ends come before a
            text that is the first part, and after a text that is the last
    """

    items: tuple[Part, ...]
    begins: bool = True

    @property
    def pictures(self) -> list[Image | Prepared]:
        return [item for item in self.items if isinstance(item, Image | Prepared)]


def parts_of(prompt: object) -> Parts | None:
    """The parts of a prompt; None if the prompt is a text or token ids."""
    if isinstance(prompt, Parts):
        return prompt
    if isinstance(prompt, Image | Prepared):
        return Parts((prompt,))
    if isinstance(prompt, str | bytes | np.ndarray | Mapping) or not isinstance(prompt, Sequence):
        return None
    if all(item is None or isinstance(item, Number) for item in prompt):
        return None  # ids, if they are integers
    return Parts(tuple(_part(item) for item in prompt))


def _part(item: object) -> Part:
    if isinstance(item, str | Image | Prepared):
        return item
    if isinstance(item, Mapping) and "role" in item:
        raise RequestError(
            "a prompt holds texts, lists of token ids and pictures, no messages; give messages to chat"
        )
    if isinstance(item, bytes | bytearray | memoryview | os.PathLike | Mapping):
        return image_of(item)
    if isinstance(item, np.ndarray):
        return token_ids(item) if item.ndim == 1 and item.dtype.kind in "iu" else Image(item)
    if isinstance(item, Iterable) and not hasattr(item, "read"):
        return token_ids(item)
    if isinstance(item, Number):
        raise RequestError(f"the ids among the parts of a prompt must be in a list, got {item!r} alone")
    return Image(item)


@final
@dataclass(frozen=True)
class Placing:
    """A prepared picture, and its place in a prompt."""

    picture: Prepared
    placed: Placed

    def tokens(self) -> list[Token]:
        """The tokens of the picture; where a row replaces a token, it has the row's number."""
        placed = self.placed
        rows = self.picture.tokens if placed.crosses else 0
        here = Picture(
            self.picture.content,
            len(placed.ids),
            placed.sees_itself,
            placed.positions,
            placed.advance,
            rows,
            rows if placed.visible is None else placed.visible,
        )
        numbers = np.cumsum(placed.replaced) - 1
        return [
            PictureToken(id, here, at, row if replaced else None)
            for at, (id, row, replaced) in enumerate(
                zip(placed.ids.tolist(), numbers.tolist(), placed.replaced.tolist(), strict=True)
            )
        ]


def tokens_of(
    items: Iterable[str | list[int] | Placing],
    tokenizer: Tokenizer | None,
    *,
    begins: bool,
    plain: Collection[int] = (),
) -> list[Token]:
    """The tokens of a prompt. Texts that meet, those around pictures included, are tokenized as one.

    plain   control tokens whose text in the prompt is only text: users cannot write pictures
    """
    items, numbers = list(items), count()
    pieces: list[str | Sequence[Token]] = []
    for item in items:
        if isinstance(item, Placing):
            placed, number = item.placed, next(numbers)
            before = placed.before.format(number) if placed.numbered else placed.before
            pieces += [before, item.tokens(), placed.after]
        else:
            pieces.append(item)
    if items and begins and tokenizer is not None:
        ends = zip((items[0], items[-1]), tokenizer.around, strict=True)
        begin, end = (around if isinstance(item, str) else [] for item, around in ends)
        pieces = [begin, *pieces, end]
    tokens, text = list[Token](), ""
    for piece in (*pieces, []):
        if isinstance(piece, str):
            text += piece
        else:
            tokens += [*(_encode(text, tokenizer, plain) if text else []), *piece]
            text = ""
    return tokens


def _encode(text: str, tokenizer: Tokenizer | None, plain: Collection[int]) -> list[int]:
    if tokenizer is None:
        raise RequestError(
            f"the file has no vocabulary; give token ids instead of the text {reprlib.repr(text)}"
        )
    return tokenizer.encode(text, add_special=False, plain=plain)


def placeholders(placeholder: str, tokenizer: Tokenizer | None) -> frozenset[int]:
    """The control tokens of the placeholder for pictures: their text in a prompt is only text."""
    if tokenizer is None:
        return frozenset()
    ids, plain = (
        tokenizer.encode(placeholder, add_special=False, parse_special=special) for special in (True, False)
    )
    return frozenset(ids).difference(plain)
