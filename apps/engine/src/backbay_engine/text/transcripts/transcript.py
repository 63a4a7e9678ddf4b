"""A transcript: its segments, and the files of subtitles that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

VTT = "WEBVTT\n\n"  # the beginning of a file


@dataclass(frozen=True)
class Segment:
    """A part of a transcript, from `start` to `end`, in seconds.

    temperature        by which its tokens were drawn
    avg_logprob        the mean logarithm of its window's probabilities
    compression_ratio  of its window's text: many repetitions compress well
    no_speech_prob     the probability that nobody speaks in its window
    seek               the frame, of 0.01 seconds, at which its window begins
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    seek: int = 0

    def entry(self, number: int) -> dict[str, Any]:
        """The segment as OpenAI's verbose_json has it."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"id": number, **values, "tokens": list(self.tokens)}


@dataclass(frozen=True)
class Transcript(Sequence[Segment]):
    """The segments of a sound, in their order.

    language    its code; None if the model knows one language
    duration    of the sound, in seconds
    """

    segments: tuple[Segment, ...]
    language: str | None = None
    task: str = "transcribe"
    duration: float = 0.0
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", "".join(segment.text for segment in self.segments).strip())

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | Sequence[Segment]:
        return self.segments[index]

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def entry(self) -> dict[str, Any]:
        """The transcript as OpenAI's verbose_json has it."""
        segments = [segment.entry(number) for number, segment in enumerate(self.segments)]
        head = {"task": self.task, "language": self.language, "duration": self.duration}
        return {**head, "text": self.text, "segments": segments}

    @property
    def srt(self) -> str:
        """A file of subtitles in SubRip's format."""
        return "".join(cue(segment, number) for number, segment in enumerate(self.segments, 1))

    @property
    def vtt(self) -> str:
        """A file of subtitles in WebVTT's format."""
        return VTT + "".join(map(cue, self.segments))


def cue(segment: Segment, number: int | None = None) -> str:
    """A subtitle: with its number, as SubRip has it, else as WebVTT has it."""
    mark = "," if number is not None else "."
    times = " --> ".join(clock(seconds, mark) for seconds in (segment.start, segment.end))
    text = " ".join(segment.text.split()).replace("-->", "->")
    head = "" if number is None else f"{number}\n"
    return f"{head}{times}\n{text}\n\n"


def clock(seconds: float, mark: str = ".") -> str:
    """A time as hours, minutes, seconds and milliseconds."""
    rest = round(1000 * seconds)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
