"""The parts of a prompt or a conversation: texts, token ids, pictures, sounds and rows, and the tokens that they become."""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from numbers import Number
from secrets import token_hex
from typing import Any, TypeAlias, final

import numpy as np

from ..arguments import token_ids
from ..encoders.contract import MediaPlace, Modality
from ..errors import RequestError, TemplateError
from ..images.image import Image
from ..steps.tokens import MediaToken, PromptMedia, Token, ids_of
from ..text.tokenizers import Tokenizer
from .content_parts import Encoded, Media, Message, media_of, modality_of, needed_modality
from .rows import Rows, is_rows_part, rows_of

Render: TypeAlias = Callable[[Sequence[Message]], str]
Part: TypeAlias = str | list[int] | Media
SHOWN: dict[Modality, dict[str, str]] = {"image": {"type": "image"}, "audio": {"type": "audio", "audio": ""}}
"""What a template gets instead of a picture or a sound; that of Qwen2-Audio asks for a key "audio"."""


@final
@dataclass(frozen=True)
class PromptParts:
    """A prompt of several parts.

    begins  whether the prompt is a sequence of its own: special tokens that the model expects at the ends come before a
            text that is the first part, and after a text that is the last
    """

    items: tuple[Part, ...]
    begins: bool = True

    @property
    def media(self) -> list[Media]:
        """The pictures, sounds and rows."""
        return [item for item in self.items if isinstance(item, Media)]

    @property
    def own_rows(self) -> list[Rows]:
        """The rows of the caller's own."""
        return [item for item in self.items if isinstance(item, Rows)]

    @property
    def modalities(self) -> frozenset[Modality]:
        """Those of the pictures and sounds, and of what rows stand for."""
        return frozenset(kind for kind in map(needed_modality, self.media) if kind is not None)

    @property
    def needs_encoding(self) -> bool:
        """Whether there are pictures or sounds, whose rows an encoder makes."""
        return any(not isinstance(item, Rows) for item in self.media)


def prompt_parts(prompt: object) -> PromptParts | None:
    """The parts of a prompt; None if the prompt is a text or token ids."""
    if isinstance(prompt, PromptParts):
        return prompt
    if isinstance(prompt, Media):
        return PromptParts((prompt,))
    if isinstance(prompt, str | bytes | np.ndarray | Mapping) or not isinstance(prompt, Sequence):
        return None
    if all(item is None or isinstance(item, Number) for item in prompt):
        return None  # ids, if they are integers
    return PromptParts(tuple(_part(item) for item in prompt))


def _part(item: object) -> Part:
    if isinstance(item, str | Media):
        return item
    if isinstance(item, Mapping) and "role" in item:
        raise RequestError(
            "a prompt holds texts, lists of token ids, pictures, sounds and rows, no messages; give messages to chat"
        )
    if isinstance(item, bytes | bytearray | memoryview | os.PathLike | Mapping):
        return media_of(item)
    if isinstance(item, np.ndarray):
        return token_ids(item) if item.ndim == 1 and item.dtype.kind in "iu" else Image(item)
    if isinstance(item, Iterable) and not hasattr(item, "read"):
        return token_ids(item)
    if isinstance(item, Number):
        raise RequestError(f"the ids among the parts of a prompt must be in a list, got {item!r} alone")
    return Image(item)


@final
@dataclass(frozen=True)
class PlacedMedia:
    """A prepared picture or sound, or rows, and the place in a prompt."""

    prepared: Encoded
    placed: MediaPlace

    @property
    def facts(self) -> PromptMedia:
        placed = self.placed
        rows = self.prepared.tokens if placed.crosses else 0
        return PromptMedia(
            self.prepared.content,
            max(len(placed.ids), 1),
            placed.sees_itself,
            placed.positions,
            placed.advance,
            rows,
            rows if placed.visible is None else placed.visible,
        )

    def tokens(self) -> list[Token]:
        """The tokens of the place; where a row replaces a token, it has the row's number."""
        placed, here = self.placed, self.facts
        numbers = np.cumsum(placed.replaced) - 1
        each = zip(placed.ids.tolist(), numbers.tolist(), placed.replaced.tolist(), strict=True)
        return [
            MediaToken(id, here, at, row if replaced else None) for at, (id, row, replaced) in enumerate(each)
        ]


def prompt_tokens(
    items: Iterable[str | list[int] | PlacedMedia],
    tokenizer: Tokenizer | None,
    *,
    begins: bool,
    plain: Collection[int] = (),
) -> list[Token]:
    """The tokens of a prompt. Texts that meet, those around pictures and sounds included, are tokenized as one.

    plain   control tokens whose text in the prompt is only text: users cannot write pictures or sounds
    """
    items, numbers = list(items), count()
    pieces: list[str | Sequence[Token] | PromptMedia] = []
    for item in items:
        if isinstance(item, PlacedMedia) and not len(item.placed.ids):
            pieces.append(item.facts)
        elif isinstance(item, PlacedMedia):
            placed = item.placed
            before = placed.before.format(next(numbers)) if placed.numbered else placed.before
            pieces += [before, item.tokens(), placed.after]
        else:
            pieces.append(item)
    if items and begins and tokenizer is not None:
        ends = zip((items[0], items[-1]), tokenizer.around, strict=True)
        begin, end = (around if isinstance(item, str) else [] for item, around in ends)
        pieces = [begin, *pieces, end]
    tokens, text, carried = list[Token](), "", dict[int, PromptMedia]()
    for piece in (*pieces, []):
        if isinstance(piece, str):
            text += piece
            continue
        tokens += _encode(text, tokenizer, plain) if text else []
        text = ""
        if isinstance(piece, PromptMedia):
            carried[len(tokens)] = piece
        else:
            tokens += piece
    for at, facts in carried.items():
        if at == len(tokens):
            raise RequestError(
                "a prompt does not end with a sound that no token stands for: give ids behind it"
            )
        (id,) = ids_of(tokens[at : at + 1])
        tokens[at] = MediaToken(id, facts, 0, None)
    return tokens


def _encode(text: str, tokenizer: Tokenizer | None, plain: Collection[int]) -> list[int]:
    if tokenizer is None:
        raise RequestError(
            f"the file has no vocabulary; give token ids instead of the text {reprlib.repr(text)}"
        )
    return tokenizer.encode(text, add_special=False, plain=plain)


def placeholder_tokens(placeholders: Iterable[str], tokenizer: Tokenizer | None) -> frozenset[int]:
    """The control tokens of the placeholders for pictures and sounds: their text in a prompt is only text."""
    if tokenizer is None:
        return frozenset()
    found = frozenset[int]()
    for placeholder in placeholders:
        ids, plain = (
            tokenizer.encode(placeholder, add_special=False, parse_special=special)
            for special in (True, False)
        )
        found |= frozenset(ids).difference(plain)
    return found


@final
@dataclass(frozen=True)
class MediaMarks:
    """The texts by which a model's template marks pictures, or sounds.

    placeholder  the text for one
    marker       the text that stands for it in a template that knows none
    framed       the placeholder with marks around it that belong to the place, which some templates write
    """

    placeholder: str
    marker: str
    framed: str = ""


@final
class MediaConversation:
    """Messages whose content may have parts, for a model that takes pictures or sounds with these marks."""

    def __init__(self, messages: Sequence[Message], marks: Mapping[Modality, MediaMarks]) -> None:
        self.media: list[Media] = []
        self.rows: list[Rows] = []
        self._marks = marks
        # What users write must not look as if the template had marked something.
        self._own = f"\ue000{token_hex(8)}\ue000"
        self._instead = {each.placeholder: f"\ue000{token_hex(8)}\ue000" for each in marks.values()}
        self._messages = [self._taken(message) for message in messages]

    def rendered(self, render: Render) -> PromptParts:
        """The prompt, by a template's `render`: its texts, and what stands between them where it marks that."""
        texts = self._texts(render, self._messages)
        if texts is None:
            texts = self._texts(render, [self._flat(message) for message in self._messages])
        if texts is None:
            raise TemplateError(
                f"the chat template does not mark {len(self.media)} {self._nouns} by "
                f"{' and '.join(map(repr, self._instead))}; write the prompt out, and use generate"
            )
        pieces = [re.split(self._own + r"(\d+);", text) for text in texts]  # each second one is a number
        if sorted(int(number) for each in pieces for number in each[1::2]) != list(range(len(self.rows))):
            raise TemplateError(
                f"the chat template does not show {len(self.rows)} rows once each; write the prompt out, and use generate"
            )
        items = list[Part]()
        for each, *given in zip_longest(pieces, self.media):
            items += [self.rows[int(piece)] if at % 2 else piece for at, piece in enumerate(each)]
            items += [item for item in given if item is not None]
        return PromptParts(tuple(item for item in items if item != ""), begins=False)

    def _texts(self, render: Render, messages: Sequence[Message]) -> list[str] | None:
        """The texts between the marks; None if the template does not write as many as there are."""
        try:
            text = render(messages)
        except TemplateError:
            if not self.media or messages is not self._messages:
                raise
            return None
        for each in self._marks.values():
            text = text.replace(each.framed or each.placeholder, each.placeholder)
        marked = "|".join(map(re.escape, self._instead)) or r"(?!)"
        pieces = re.split(f"({marked})", text)  # each second one is a mark
        if pieces[1::2] != [self._marks[modality_of(given)].placeholder for given in self.media]:
            return None
        return [self._shown(text) for text in pieces[::2]]

    def _taken(self, message: Message) -> Message:
        """A message as a template takes it: without its pictures and sounds, which are collected."""
        taken = {key: self._hidden(value) for key, value in message.items() if key != "content"}
        if "content" in message:
            content = message["content"]
            listed = isinstance(content, list | tuple)
            taken["content"] = self._parts(content) if listed else self._hidden(content)
        return taken

    def _parts(self, content: Sequence[Any]) -> Any:
        """The parts of a message's content; one text if rows are among them, and neither pictures nor sounds: templates of
        models without an encoder may know no parts.
        """
        parts = [self._part(part) for part in content]
        texts = [
            text for part in parts if isinstance(part, Mapping) and isinstance(text := part.get("text"), str)
        ]
        return "".join(texts) if any(map(is_rows_part, content)) and len(texts) == len(parts) else parts

    def _part(self, part: Any) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": self._hidden(part)}
        if needed_modality(part):
            self.media.append(given := media_of(part))
            return SHOWN[modality_of(given)]
        if is_rows_part(part):
            self.rows.append(rows_of(part))
            return {"type": "text", "text": f"{self._own}{len(self.rows) - 1};"}
        if isinstance(part, Mapping) and part.get("type", "text") == "text" and "text" not in part:
            raise RequestError(f'a text part needs the key "text", got {reprlib.repr(part)}')
        return self._hidden(part)

    @property
    def _nouns(self) -> str:
        kinds = {modality_of(each) for each in self.media}
        return " and ".join(
            noun for kind, noun in (("image", "pictures"), ("audio", "sounds")) if kind in kinds
        )

    def _hidden(self, value: Any) -> Any:
        """A value without the placeholders in its texts."""
        if isinstance(value, str):
            for placeholder, instead in self._instead.items():
                value = value.replace(placeholder, instead)
            return value
        if isinstance(value, Mapping):
            return {key: self._hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(item) for item in value]
        return value

    def _shown(self, text: str) -> str:
        """A text with the placeholders that users wrote."""
        for placeholder, instead in self._instead.items():
            text = text.replace(instead, placeholder)
        return text

    def _flat(self, message: Message) -> Message:
        """A message whose content is one text, for templates that know no parts."""
        content = message.get("content")
        if not isinstance(content, list):
            return message
        texts = [self._markers(part) or str(part.get("text", "")) for part in content]
        return {**message, "content": "".join(texts)}

    def _markers(self, part: Any) -> str:
        """The marker of a picture or a sound; empty for other parts."""
        return next((marks.marker for kind, marks in self._marks.items() if part == SHOWN[kind]), "")
