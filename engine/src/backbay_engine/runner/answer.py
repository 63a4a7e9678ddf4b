"""Answers, and handles to wait for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from numbers import Real
from queue import SimpleQueue
from threading import TIMEOUT_MAX, Event
from time import perf_counter
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, final

from backbay import BackendUnavailableError, OptionError
from backbay.plugin import raise_if_starved

from ..text.sampling import Sampled

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass
class Timings:
    """Where the time of a request went, in seconds."""

    prompt_tokens: int = 0
    reused_tokens: int = 0  # of the prompt, already in the cache
    tokens: int = 0
    pictures: float = 0.0  # for the preparation and the encoding of the prompt's pictures
    waited: float = 0.0  # for a free sequence
    prompt: float = 0.0  # from the free sequence to the first token
    generation: float = 0.0  # from the first token to the last

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens per second, reused ones not counted."""
        return (self.prompt_tokens - self.reused_tokens) / self.prompt if self.prompt else 0.0

    @property
    def rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / self.generation if self.generation and self.tokens > 1 else 0.0


@dataclass
class Completion:
    """The result of a request for text."""

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    logprobs: list[Sampled] | None = None  # one for each token; None if not asked for
    stop: str | None = None  # the stop string that ended it
    timings: Timings = field(default_factory=Timings)


class Receiver(Protocol[T_contra]):
    """Takes what a request gives: pieces of text, then the result or an error."""

    def emit(self, piece: str, /) -> None: ...
    def succeed(self, result: T_contra, /) -> None: ...
    def fail(self, error: BaseException, /) -> None: ...
    def after_fork(self, error: BaseException, /) -> None:
        """Fail, in a forked child: a lost thread may hold any lock."""


@final
class Handle(Generic[T]):
    """A submitted request: iterate over its text as it comes, or wait for its result."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._pieces: SimpleQueue[str | None] = SimpleQueue()
        self._over = Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        """End the request early; its result is the answer so far. Does nothing if the request is over."""
        if not self.done:
            self._cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result; raises the request's error, or TimeoutError if it takes more than `timeout` seconds."""
        if not self._over.wait(_seconds(timeout)):
            raise TimeoutError(f"no result in {timeout} s; the request goes on")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def __iter__(self) -> Iterator[str]:
        while (piece := self._pieces.get()) is not None:
            yield piece
        self._pieces.put(None)  # iterating again ends at once
        if self._error is not None:
            raise self._error

    # -- as a receiver -----------------------------------------------------------------------------------

    def emit(self, piece: str) -> None:
        if piece:
            self._pieces.put(piece)

    def succeed(self, result: T) -> None:
        self._result = result
        self._pieces.put(None)
        self._over.set()

    def after_fork(self, error: BaseException) -> None:
        """Fail, in a forked child: the queue's and the event's locks may be held by lost threads."""
        self._pieces, self._over = SimpleQueue(), Event()
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        try:
            raise_if_starved(error, "a request")
            self._error = error
        except BackendUnavailableError as starved:
            self._error = starved
        self._pieces.put(None)
        self._over.set()


def _seconds(timeout: object) -> float | None:
    """A time limit as Python's locks take it; None for none."""
    if timeout is None:
        return None
    if not isinstance(timeout, Real) or math.isnan(timeout):
        raise OptionError(f"timeout must be a number of seconds or None, got {timeout!r}")
    return min(float(timeout), TIMEOUT_MAX)


@final
class TextPieces(Iterator[str]):
    """The pieces of an answer's text as they come.

    Whoever holds them keeps the model open; the request ends when nobody does.
    """

    def __init__(self, handle: Handle[Completion], model: object) -> None:
        self._handle, self._pieces, self._model = handle, iter(handle), model

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except BaseException:  # Ctrl+C too, which interrupts the waiting
            self.close()
            raise

    def close(self) -> None:
        """Cancel the request, unless it is over; nothing more comes."""
        self._handle.cancel()
        self._pieces = iter(())

    def __del__(self) -> None:
        self.close()


@final
class Clock:
    """Measures consecutive periods of time."""

    def __init__(self) -> None:
        self._mark = perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = perf_counter()
        passed, self._mark = now - self._mark, now
        return passed
