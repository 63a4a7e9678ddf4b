"""Conversations with pictures: a chat template writes the text, and says where the pictures stand."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from secrets import token_hex
from typing import Any, TypeAlias, final

from ..errors import RequestError, TemplateError
from .picture import Image, image_of
from .prepared import Prepared
from .prompts import Part, Parts

Message: TypeAlias = Mapping[str, Any]
Render: TypeAlias = Callable[[Sequence[Message]], str]


@final
class Conversation:
    """Messages whose content may have parts.

    placeholder  the text by which the model's template marks a picture
    marker       the text that stands for a picture in the template of a model that knows no pictures
    """

    def __init__(self, messages: Sequence[Message], placeholder: str, marker: str) -> None:
        self.pictures: list[Image | Prepared] = []
        self._placeholder, self._marker = placeholder, marker
        # What users write must not look as if the template had marked a picture.
        self._instead = f"\ue000{token_hex(8)}\ue000"
        self._messages = [self._taken(message) for message in messages]

    def rendered(self, render: Render) -> Parts:
        """The prompt, by a template's `render`: its texts, and the pictures where it marks them."""
        texts = self._texts(render, self._messages)
        if texts is None:
            texts = self._texts(render, [self._flat(message) for message in self._messages])
        if texts is None:
            raise TemplateError(
                f"the chat template does not mark {len(self.pictures)} pictures by {self._placeholder!r}; write the "
                "prompt out, and use generate"
            )
        mixed: list[Part | None] = list(chain.from_iterable(zip_longest(texts, self.pictures)))
        return Parts(tuple(item for item in mixed if item is not None and item != ""), begins=False)

    def _texts(self, render: Render, messages: Sequence[Message]) -> list[str] | None:
        """The texts between the pictures; None if the template does not write as many pictures as there are."""
        try:
            text = render(messages)
        except TemplateError:
            if not self.pictures or messages is not self._messages:
                raise
            return None
        texts = text.split(self._placeholder)
        if len(texts) != len(self.pictures) + 1:
            return None
        return [text.replace(self._instead, self._placeholder) for text in texts]

    def _taken(self, message: Message) -> Message:
        """A message as a template takes it: without its pictures, which are collected."""
        taken = {key: self._hidden(value) for key, value in message.items() if key != "content"}
        if "content" in message:
            content = message["content"]
            listed = isinstance(content, list | tuple)
            taken["content"] = [self._part(part) for part in content] if listed else self._hidden(content)
        return taken

    def _part(self, part: Any) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": self._hidden(part)}
        if isinstance(part, Image | Prepared) or is_picture_part(part):
            self.pictures.append(picture_of(part))
            return {"type": "image"}
        if isinstance(part, Mapping) and part.get("type", "text") == "text" and "text" not in part:
            raise RequestError(f'a text part needs the key "text", got {reprlib.repr(part)}')
        return self._hidden(part)

    def _hidden(self, value: Any) -> Any:
        """A value without the placeholder in its texts."""
        if isinstance(value, str):
            return value.replace(self._placeholder, self._instead)
        if isinstance(value, Mapping):
            return {key: self._hidden(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hidden(item) for item in value]
        return value

    def _flat(self, message: Message) -> Message:
        """A message whose content is one text, for templates that know no parts."""
        content = message.get("content")
        if not isinstance(content, list):
            return message
        texts = [self._marker if part == {"type": "image"} else str(part.get("text", "")) for part in content]
        return {**message, "content": "".join(texts)}


def has_pictures(messages: Sequence[Message]) -> bool:
    """Whether a part of a conversation is a picture."""
    contents = [message.get("content") for message in messages]
    parts = chain.from_iterable(content for content in contents if isinstance(content, list | tuple))
    return any(isinstance(part, Image | Prepared) or is_picture_part(part) for part in parts)


def is_picture_part(part: object) -> bool:
    return isinstance(part, Mapping) and (
        part.get("type") in ("image", "image_url") or "image" in part or "image_url" in part
    )


def picture_of(part: Any) -> Image | Prepared:
    """The picture of a part."""
    held = part.get("image") if isinstance(part, Mapping) else part
    return held if isinstance(held, Prepared) else image_of(part)
