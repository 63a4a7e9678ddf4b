"""The parts of a message's content: the pictures, sounds and rows in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ..encoders.contract import Modality
from ..images.image import Image, image_of
from ..images.prepared_picture import Prepared
from ..sound.audio import Audio, audio_of
from .rows import PreparedMedia, Rows, is_rows_part, rows_of

Message: TypeAlias = Mapping[str, Any]
Encoded: TypeAlias = PreparedMedia | Rows
"""What has a known number of rows."""
Media: TypeAlias = Image | Audio | Encoded
WORDS: dict[Modality, tuple[str, ...]] = {
    "image": ("image", "image_url"),
    "audio": ("audio", "input_audio", "audio_url"),
}
"""Types and keys of content parts."""


def modality_of(given: Media) -> Modality:
    """The modality of a picture or a sound, or of what rows stand for."""
    if isinstance(given, Rows):
        assert given.of is not None  # rows that are tokens of the text have none
        return modality_of(given.of)
    return "image" if isinstance(given, Image | Prepared) else "audio"


def content_parts(messages: Sequence[Message]) -> list[Any]:
    """The parts of a conversation's contents."""
    contents = (message.get("content") for message in messages)
    return [part for content in contents if isinstance(content, list | tuple) for part in content]


def needed_modality(part: object) -> Modality | None:
    """The modality of a picture or a sound, or of what rows stand for; None of other parts."""
    if is_rows_part(part):
        return None if (of := rows_of(part).of) is None else modality_of(of)
    if isinstance(part, Media):
        return modality_of(part)
    if not isinstance(part, Mapping) or not is_media_part(part):
        return None
    return "image" if _says(part, "image") else "audio"


def is_media_part(part: object) -> bool:
    """Whether a content part is one of a picture or a sound."""
    return isinstance(part, Mapping) and (_says(part, "image") or _says(part, "audio"))


def _says(part: Mapping[Any, Any], modality: Modality) -> bool:
    return part.get("type") in WORDS[modality] or any(word in part for word in WORDS[modality])


def media_of(part: Any) -> Media:
    """The picture of a part, or its sound or rows, if it is of that type; bytes and paths are those of pictures."""
    if is_rows_part(part):
        return rows_of(part)
    if isinstance(part, Media):
        return part
    sound = isinstance(part, Mapping) and _says(part, "audio") and not _says(part, "image")
    held = part.get("audio" if sound else "image") if isinstance(part, Mapping) else part
    if isinstance(held, PreparedMedia):
        return held
    return audio_of(part) if sound else image_of(part)
