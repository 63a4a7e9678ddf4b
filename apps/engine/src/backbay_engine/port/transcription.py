"""Transcripts of sounds, window by window: each is a request of its own, which shares its steps with others."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, TypedDict, TypeVar, final

import numpy as np

from backbay import CancelledError
from backbay.gguf import nearest

from ..errors import RequestError, UnknownOptionError
from ..media.prompts import PromptParts
from ..runner.requests.answer import Completion
from ..runner.requests.handle import Handle, wait_for
from ..runner.requests.request import Generate, GenerationOptions, Request, Score
from ..sound.audio import RATE
from ..sound.prepared_sound import PreparedAudio
from ..text.sampling import SamplingParams
from ..text.transcripts import Segment, Transcript, TranscriptMarks, TranscriptRules, window_segments
from ..text.transcripts.marks import FRAMES, TASKS
from ..text.transcripts.segments import STEP, WindowSegment
from .contract import Port

T = TypeVar("T")
TEMPERATURES = 0.0, 0.2, 0.4, 0.6, 0.8, 1.0
MOST_COMPRESSED = 2.4
LEAST_LOGPROB = -1.0
SILENT = 0.6
"""The limits of the reference's program: beyond them a window is transcribed again at the next temperature, or skipped."""


@final
@dataclass(frozen=True)
class WindowText:
    """What one request gave for a window."""

    tokens: Sequence[int]
    text: str
    temperature: float
    logprob: float

    @property
    def compression(self) -> float:
        data = self.text.encode()
        return len(data) / len(zlib.compress(data))

    @property
    def is_good(self) -> bool:
        return self.compression <= MOST_COMPRESSED and self.logprob >= LEAST_LOGPROB


class TranscriptFields(TypedDict, total=False):
    """The options of `transcribe`, for type checkers; TranscriptOptions documents them."""

    language: str | None
    timestamps: bool
    task: str
    temperature: float | Sequence[float]
    prompt: str


@final
@dataclass(frozen=True, kw_only=True)
class TranscriptOptions:
    """How a sound is transcribed.

    language     a code such as "de", or an English name; None: it is detected in the first 30 seconds
    timestamps   whether segments are as long as what is said; otherwise there is one for each window of 30 seconds
    task         "transcribe", or "translate": into English
    temperature  that of each trial; the next one comes if a window's text repeats itself, or is unlikely
    prompt       a text that precedes the sound, such as names in their spelling
    """

    language: str | None = None
    timestamps: bool = True
    task: str = TASKS[0]
    temperature: float | Sequence[float] = TEMPERATURES
    prompt: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.language, str | None):
            raise RequestError(f'language must be a text such as "en", or None, got {self.language!r}')
        if not isinstance(self.timestamps, bool):
            raise RequestError(f"timestamps must be True or False, got {self.timestamps!r}")
        if self.task not in TASKS:
            raise RequestError(f"task must be {' or '.join(TASKS)}, got {self.task!r}")
        if not isinstance(self.prompt, str):
            raise RequestError(f"prompt must be a text, got {self.prompt!r}")
        if not self.temperatures:
            raise RequestError(
                "temperature must be a number, or several in the order of their trial, got none"
            )
        for each in self.temperatures:
            SamplingParams(temperature=each)  # checks it

    @property
    def temperatures(self) -> tuple[float, ...]:
        given = self.temperature
        return tuple(given) if isinstance(given, Sequence) else (given,)


NAMES: Final = tuple(each.name for each in fields(TranscriptOptions))


def transcript_options(given: TranscriptFields) -> TranscriptOptions:
    """Options by name, checked."""
    for name in given:
        if name not in NAMES:
            raise UnknownOptionError(f"unknown option {name!r}{nearest(name, NAMES)}")
    return TranscriptOptions(**given)


@final
class Transcription(Iterator[Segment]):
    """The segments of one sound, as they come. Any thread may close it while another waits for a segment.

    language  its code, detected in the first window if it is None
    """

    def __init__(self, port: Port, options: TranscriptOptions, sound: PreparedAudio) -> None:
        self._marks = marks = port.facts.require_transcripts()
        self.language = None if options.language is None else marks.language(options.language)
        marks.prompt(next(iter(marks.languages), None), options.task, times=True)  # refuses a task
        assert port.tokenizer is not None  # as there are marks
        self._port, self._sound, self._options = port, sound, options
        self._tokenizer = port.tokenizer
        self._before = self._previous(marks, options.prompt)
        self._left, self._closed = self._segments(), False
        self._handle: Handle[Any] | None = None

    def __next__(self) -> Segment:
        try:
            return next(self._left)
        except CancelledError:
            if not self._closed:
                raise
            raise StopIteration from None

    def close(self) -> None:
        """End the request that runs, if one does, within a step; no segment follows."""
        self._closed = True
        if (handle := self._handle) is not None:
            handle.cancel()

    @property
    def duration(self) -> float:
        return self._sound.samples / RATE

    def transcript(self) -> Transcript:
        segments = tuple(self)
        return Transcript(segments, self.language, self._options.task, self.duration)

    def _segments(self) -> Iterator[Segment]:
        """The segments of window after window; each begins where the last whole segment ended."""
        begin, all_frames, step = 0, self._sound.mel.shape[1], self._marks.window
        while begin * STEP / FRAMES < self.duration:
            window = self._sound.window(begin, step)
            frames = min(step, all_frames - begin)
            silence = self._listen(window)
            found = self._transcribed(window, silence)
            if silence > SILENT and found.logprob < LEAST_LOGPROB:
                begin += frames
                continue
            parts, further = [WindowSegment(0, frames // FRAMES, found.tokens)], frames
            if self._options.timestamps:
                parts, further = window_segments(found.tokens, self._marks, frames)
            offset = begin * STEP / FRAMES
            for part in parts:
                begun, end = (
                    min(round(offset + STEP * at, 3), self.duration) for at in (part.begin, part.end)
                )
                text = self._text(part.tokens)
                if text.strip() and begun < self.duration:
                    own = begun, max(begun, end), text, tuple(part.tokens)
                    yield Segment(*own, found.temperature, found.logprob, found.compression, silence, begin)
            begin += further

    def _listen(self, window: PreparedAudio) -> float:
        """The probability that nobody speaks in a window; finds out the language, if need be."""
        (row,) = self._result(Score(PromptParts((window, [self._marks.start]))))
        if self.language is None and self._marks.languages:
            self.language = max(
                self._marks.languages, key=lambda code: float(row[self._marks.languages[code]])
            )
        shares = np.exp(row.astype(np.float64) - row.max())
        return float(shares[self._marks.silence] / shares.sum())

    def _transcribed(self, window: PreparedAudio, silence: float) -> WindowText:
        """The transcript of a window at the first temperature that gives a good one, or at the last."""
        first, *others = self._options.temperatures
        found = self._at(window, first)
        for temperature in others:
            if found.is_good or silence > SILENT:
                break
            found = self._at(window, temperature)
        self._before = []
        return found

    def _at(self, window: PreparedAudio, temperature: float) -> WindowText:
        ids = [
            *self._before,
            *self._marks.prompt(self.language, self._options.task, times=self._options.timestamps),
        ]
        sampling = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=0, logprobs=0)
        options = GenerationOptions(
            max_tokens=max(1, self._port.facts.context - len(ids)),
            sampling=sampling,
            transcript=TranscriptRules(self._marks, self._options.timestamps),
        )
        answer = self._result(Generate(PromptParts((window, ids)), options))
        tokens = [token for token in answer.tokens if token != self._marks.end]
        logprobs = [each.logprob or 0.0 for each in answer.logprobs or ()]
        return WindowText(tokens, self._text(tokens), temperature, sum(logprobs) / (len(tokens) + 1))

    def _result(self, request: Request[T]) -> T:
        """The result of a request; CancelledError if the transcription, or the model, is closed meanwhile."""
        self._handle = handle = self._port.submit(request)
        if self._closed:
            handle.cancel()
        found = wait_for(handle)
        if self._closed or (isinstance(found, Completion) and found.finish_reason == "cancelled"):
            raise CancelledError("the transcription was cancelled")
        return found

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode([token for token in tokens if token < self._marks.end], continues=True)

    def _previous(self, marks: TranscriptMarks, prompt: str) -> list[int]:
        """The tokens of a text that precedes the sound, at most half of the context."""
        if not prompt.strip():
            return []
        if marks.previous is None:
            raise RequestError("the model knows no text before a sound; leave prompt= out")
        ids = self._tokenizer.encode(" " + prompt.strip(), add_special=False, parse_special=False)
        return [marks.previous, *ids[-(self._port.facts.context // 2 - 1) :]]
