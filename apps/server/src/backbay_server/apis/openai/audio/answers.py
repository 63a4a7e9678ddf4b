"""Transcriptions: the bodies of answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from backbay_engine import Segment, Transcript

TRANSLATED = "english"  # as OpenAI's answers name the language of translations


class AudioUsage(Struct):
    """The length of the sound."""

    seconds: float
    type: Literal["duration"] = "duration"


class TranscribedText(Struct):
    """What is said."""

    text: str
    usage: AudioUsage


class TranscribedSegment(Struct):
    """A part of what is said, with its times in seconds; `seek` is the frame at which its window begins."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class VerboseTranscript(Struct):
    """What is said, in which language, segment by segment."""

    task: str
    language: str
    duration: float
    text: str
    segments: list[TranscribedSegment]
    usage: AudioUsage


class TextDelta(Struct, tag="transcript.text.delta", tag_field="type"):
    """A piece of the text."""

    delta: str


class TextDone(Struct, tag="transcript.text.done", tag_field="type"):
    """The whole text, at its end."""

    text: str
    usage: AudioUsage


SpeechEvent = TextDelta | TextDone


def usage_of(transcript: Transcript) -> AudioUsage:
    return AudioUsage(transcript.duration)


def verbose(transcript: Transcript) -> VerboseTranscript:
    """The transcript with its segments; without a language, the model knows English alone."""
    language = TRANSLATED if transcript.task == "translate" else transcript.language or "en"
    segments = [_segment(number, each) for number, each in enumerate(transcript)]
    head = transcript.task, language, transcript.duration, transcript.text
    return VerboseTranscript(*head, segments, usage_of(transcript))


def _segment(number: int, segment: Segment) -> TranscribedSegment:
    return TranscribedSegment(**segment.entry(number))
