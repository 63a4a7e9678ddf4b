"""The tokens by which Whisper marks languages, tasks and times, by a file's metadata or its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, final

import numpy as np

from backbay.gguf import Config, Key, flag, nearest, texts, whole, wholes

from ...errors import RequestError
from ..tokenizers import Tokenizer
from .languages import CODES

TASKS: Final = "transcribe", "translate"
LANGUAGES = texts("transcript.languages")
LANGUAGE_IDS = wholes("transcript.language_ids")
MULTILINGUAL = flag("transcript.multilingual")
LATEST_BEGIN = whole("transcript.latest_begin")
SUPPRESSED = wholes("transcript.suppressed_ids", -1)
SUPPRESSED_FIRST = wholes("transcript.suppressed_first_ids", -1)
ROWS = whole("audio.context_length", 1, 1 << 20)
FRAMES = 2  # of a row of the encoder, and between two times


def _id(name: str) -> Key[int]:
    return whole(f"transcript.{name}_id")


START, NO_TIMESTAMPS, PREVIOUS = _id("start"), _id("no_timestamps"), _id("previous")


@final
@dataclass(frozen=True)
class TranscriptMarks:
    """Ids of tokens.

    end               of a transcript; text has lower ids
    previous          before a text that precedes the sound; None: the vocabulary has no such mark
    no_timestamps     the last mark: times follow, 0.02 seconds apart, from 0
    languages         by code; none if the model knows English alone
    tasks             by name; none if the model knows one
    suppressed        tokens that never come
    suppressed_first  tokens that do not come first
    latest_begin      the number of the latest time that may come first; None: any
    window            frames of a spectrogram that are transcribed at once
    """

    start: int
    end: int
    no_timestamps: int
    previous: int | None
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    latest_begin: int | None
    window: int

    @property
    def first_time(self) -> int:
        return self.no_timestamps + 1

    @property
    def silence(self) -> int:
        """The token whose probability after the start says that nobody speaks: the one before the last mark."""
        return self.no_timestamps - 1

    @classmethod
    def of(cls, config: Config, tokenizer: Tokenizer | None) -> Self | None:
        """The marks of a model; None if neither its metadata nor its vocabulary has them."""
        if tokenizer is None:
            return None
        named = tokenizer.token_id
        start = START.of(config, named("<|startoftranscript|>"))
        end, last = named("<|endoftext|>"), NO_TIMESTAMPS.of(config, named("<|notimestamps|>"))
        if start is None or end is None or last is None:
            return None
        languages = _languages(config, tokenizer)
        tasks = {task: _id(task).of(config, named(f"<|{task}|>")) for task in TASKS}
        multilingual = MULTILINGUAL.of(config, len(languages) > 1)
        marks = np.array([id for id in sorted(tokenizer.control_ids) if end < id < last], np.int64)
        space = [id for id in (named("Ġ"), end) if id is not None]
        return cls(
            start,
            end,
            last,
            PREVIOUS.of(config, named("<|startofprev|>")),
            languages if multilingual else {},
            {task: id for task, id in tasks.items() if id is not None} if multilingual else {},
            _ids(SUPPRESSED.of(config, marks), tokenizer.vocabulary_size),
            _ids(SUPPRESSED_FIRST.of(config, np.array(space, np.int64)), tokenizer.vocabulary_size),
            LATEST_BEGIN.of(config, None),
            FRAMES * ROWS.of(config),
        )

    def language(self, asked: str) -> str:
        """The code of a language, which may be its English name; RequestError if the model does not know it."""
        code = asked.lower().strip("<|>")
        code = CODES.get(code, code)
        if code not in (self.languages or ("en",)):
            known = sorted(self.languages) or ["en"]
            raise RequestError(
                f"the model knows no language {asked!r}{nearest(code, known)}; it knows {', '.join(known)}"
            )
        return code

    def prompt(self, language: str | None, task: str, *, times: bool) -> list[int]:
        """The tokens before a transcript."""
        ids = [self.start]
        if self.languages and language is not None:
            ids += [self.languages[language], *([self.tasks[task]] if task in self.tasks else [])]
        elif task != TASKS[0]:
            raise RequestError(f"task={task!r}: the model knows English alone, and transcribes it")
        return ids if times else [*ids, self.no_timestamps]


def _languages(config: Config, tokenizer: Tokenizer) -> dict[str, int]:
    names = LANGUAGES.of(config, None)
    if names is None:
        found = {code: tokenizer.token_id(f"<|{code}|>") for code in dict.fromkeys(CODES.values())}
        return {code: id for code, id in found.items() if id is not None}
    ids = LANGUAGE_IDS.of(config).tolist()
    known = len(ids) == len(names) and max(ids, default=0) < tokenizer.vocabulary_size
    if not known:
        raise LANGUAGE_IDS.refuse(config, f"{len(names)} ids below {tokenizer.vocabulary_size}")
    return {str(name).strip("<|>"): id for name, id in zip(names, ids, strict=True)}


def _ids(given: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> tuple[int, ...]:
    return tuple(id for id in given.tolist() if 0 <= id < size)
