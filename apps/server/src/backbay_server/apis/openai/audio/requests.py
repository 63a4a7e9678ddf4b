"""Transcriptions: the bodies of requests, which are forms."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from ....errors import InvalidRequestError
from ....generation import SpeechRequest
from ... import fields
from ...fields import ignored, refused, taken

Form: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]
Texts: TypeAlias = Annotated[list[str], Meta(max_length=64)]
SPEAKERS = "the model tells no speakers apart"


class TranscriptionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A sound to transcribe, or to translate into English."""

    file: Annotated[bytes, taken("the sound: a file in WAV, FLAC, OGG or MP3")]
    model: fields.Model = None
    language: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        taken("what is spoken, a code such as de, or an English name; by default it is detected"),
    ] = None
    prompt: Annotated[str | None, taken("a text that precedes the sound, such as names")] = None
    response_format: Annotated[
        Form | None, taken("the form of the answer: JSON (the default), plain text, or subtitles")
    ] = None
    temperature: Annotated[
        fields.Share | None,
        taken(
            "0: the most likely tokens, or draws where a text repeats itself or is unlikely; else of all draws"
        ),
    ] = None
    timestamp_granularities: Annotated[
        Texts | None, taken("segment: those of verbose_json; times of words are not known")
    ] = None
    stream: Annotated[bool | None, taken("whether the text comes in pieces, as typed events")] = None
    include: Annotated[Texts | None, refused("tokens have no log-probabilities, segments have", ([],))] = None
    chunking_strategy: Annotated[Texts | None, ignored("windows end where a segment does")] = None
    keywords: Annotated[Texts | None, refused("name them in the prompt", ([],))] = None
    languages: Annotated[Texts | None, refused("give one, as language", ([],))] = None
    known_speaker_names: Annotated[Texts | None, refused(SPEAKERS, ([],))] = None
    known_speaker_references: Annotated[Texts | None, refused(SPEAKERS, ([],))] = None


def speech_request(body: TranscriptionRequest, task: str) -> SpeechRequest:
    """What the model is to do; InvalidRequestError for times of words, and for streams of subtitles."""
    others = [each for each in body.timestamp_granularities or () if each != "segment"]
    if others:
        raise InvalidRequestError(
            f"timestamp_granularities cannot have {others[0]!r}: segments have times, words have none",
            param="timestamp_granularities",
        )
    if body.stream and body.response_format not in (None, "json", "text"):
        raise InvalidRequestError(
            f"a stream gives text; response_format cannot be {body.response_format!r}",
            param="response_format",
        )
    return SpeechRequest(
        model=body.model,
        sound=body.file,
        task=task,
        language=body.language,
        prompt=body.prompt,
        temperature=body.temperature or None,
    )
