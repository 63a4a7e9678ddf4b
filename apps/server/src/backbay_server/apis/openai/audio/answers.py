"""Transcriptions: the bodies of answers."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from backbay_engine import Transcript

TRANSLATED = "english"  # as OpenAI's answers name the language of translations


class AudioUsage(Struct):
    """The length of the sound."""

    seconds: float
    type: Literal["duration"] = "duration"


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


class AudioTranscript(Struct):
    """What is said; if verbose, in which language, and segment by segment."""

    text: str
    usage: AudioUsage
    task: str | UnsetType = UNSET
    language: str | UnsetType = UNSET
    duration: float | UnsetType = UNSET
    segments: list[TranscribedSegment] | UnsetType = UNSET


class TextDelta(Struct, tag="transcript.text.delta", tag_field="type"):
    """A piece of the text."""

    delta: str


class TextDone(Struct, tag="transcript.text.done", tag_field="type"):
    """The whole text, at its end."""

    text: str
    usage: AudioUsage


SpeechEvent = TextDelta | TextDone


def short(transcript: Transcript) -> AudioTranscript:
    return AudioTranscript(transcript.text, usage_of(transcript))


def verbose(transcript: Transcript) -> AudioTranscript:
    """The transcript with its segments; without a language, the model knows English alone."""
    language = TRANSLATED if transcript.task == "translate" else transcript.language or "en"
    segments = [TranscribedSegment(**each.entry(number)) for number, each in enumerate(transcript)]
    usage, duration = usage_of(transcript), transcript.duration
    return AudioTranscript(transcript.text, usage, transcript.task, language, duration, segments)


def usage_of(transcript: Transcript) -> AudioUsage:
    return AudioUsage(transcript.duration)
