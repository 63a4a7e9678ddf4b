"""Answers in progress: what the engine's threads give becomes events in the event loop."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, final

from backbay_engine import (
    LLM,
    AnswerReader,
    Completion,
    Handle,
    Piece,
    Sampled,
    Text,
    Timings,
    Tokenizer,
    TokenStep,
)

from ..errors import UnavailableError
from ..monitoring import RequestMeter
from .prompts import EnginePrompt

Reason: TypeAlias = Literal["stop", "length", "tool_calls"]


class AnswerDelta(NamedTuple):
    """What one step added to an answer."""

    choice: int
    pieces: Sequence[Piece]  # the text, reasoning and calls of tools that are certain now
    tokens: Sequence[int]  # the new ones; their text may follow in a later step
    logprobs: Sequence[Sampled] | None  # of the new tokens; None if not asked for

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Text))


class AnswerEnd(NamedTuple):
    """The end of an answer; `stop` is the stop string that ended it."""

    choice: int
    reason: Reason
    stop: str | None
    timings: Timings


Event: TypeAlias = AnswerDelta | AnswerEnd


@final
class EventLoopBridge:
    """Calls functions in the event loop. All calls of one step of the engine cost one wake-up of the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop, self._calls, self._woken = loop, deque[tuple[Callable[[Any], None], Any]](), False

    def call(self, function: Callable[[Any], None], value: Any) -> None:
        """Call the function with the value in the event loop, after earlier calls. Any thread may ask for it."""
        self._calls.append((function, value))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._calls.clear()

    def _deliver(self) -> None:
        self._woken = False  # first, so that a call from now on wakes the loop again
        while self._calls:
            function, value = self._calls.popleft()
            function(value)


class PromptEcho(NamedTuple):
    """A prompt as the beginning of its answer: its text, its tokens, and their log-probabilities if asked for."""

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[Sampled] | None


@final
class Answer:
    """The answers to one request: an asynchronous iterator of their events, in the order in which they come."""

    def __init__(self, model: str, llm: LLM, bridge: EventLoopBridge) -> None:
        self.model, self.llm = model, llm
        self.prompts: Sequence[EnginePrompt] = ()
        self._bridge, self._choices = bridge, list[_Choice]()
        self._items = deque[tuple[_Choice, Any]]()
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False

    def begin(
        self,
        submit: Callable[..., Handle[Completion] | None],
        reader: AnswerReader,
        echo: PromptEcho | None = None,
    ) -> None:
        """Submit a request for one more choice. Any thread may call it; once closed, the request ends at once."""
        choice = _Choice(len(self._choices), reader, self.llm.end_ids)
        first = [] if echo is None else [echo]  # given with the first step: a refusal comes before any text

        def on_step(item: Any) -> None:
            if first and not isinstance(item, BaseException):
                self._bridge.call(self._take, (choice, first.pop()))
            self._bridge.call(self._take, (choice, item))

        self._choices.append(choice)
        choice.handle = submit(on_step=on_step)
        if self.closed:  # in the meantime
            choice.cancel()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.llm.tokenizer

    def measure(self, begin: Callable[[], RequestMeter]) -> None:
        """Measure each choice, from now on. The event loop calls it, before the first event."""
        for choice in self._choices:
            choice.meter = begin()

    def close(self, *, failed: bool) -> None:
        """End what still runs, because the request failed, or nobody waits for the rest."""
        self.closed = True
        for choice in self._choices:
            choice.cancel()
            choice.abandon(failed)

    async def __aiter__(self) -> AsyncIterator[Event]:
        running = len(self._choices)
        while running:
            if not self._items:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            choice, item = self._items.popleft()
            for event in choice.events(item):
                yield event
                running -= isinstance(event, AnswerEnd)

    async def whole(self) -> list[tuple[list[AnswerDelta], AnswerEnd]]:
        """The deltas of each choice, and its end, when all have ended."""
        deltas, ends = [list[AnswerDelta]() for _ in self._choices], dict[int, AnswerEnd]()
        async for event in self:
            if isinstance(event, AnswerEnd):
                ends[event.choice] = event
            else:
                deltas[event.choice].append(event)
        return [(each, ends[choice]) for choice, each in enumerate(deltas)]

    def _take(self, item: tuple[_Choice, Any]) -> None:
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@final
class _Choice:
    """One of the answers, and the engine's handle of it."""

    def __init__(self, number: int, reader: AnswerReader, end_ids: frozenset[int]) -> None:
        self.number, self._reader, self._end_ids = number, reader, end_ids
        self.handle: Handle[Completion] | None = None
        self.meter: RequestMeter | None = None  # None before the request has begun, and after its end

    def abandon(self, failed: bool) -> None:
        """Nobody waits any more: the measuring ends, unless it has."""
        meter, self.meter = self.meter, None
        if meter is not None and failed:
            meter.fail()
        elif meter is not None:
            meter.cancel()

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()

    def events(self, item: Any) -> Iterator[Event]:
        """The events of what the engine gave: a step, the completion, or an error."""
        if isinstance(item, TokenStep):
            if self.meter is not None:
                self.meter.step(len(item.tokens))
            pieces = self._reader.push(item.text)
            logprobs = item.logprobs
            if logprobs and item.finish_reason == "stop" and logprobs[-1].token in self._end_ids:
                logprobs = logprobs[:-1]  # the end has no text
            if pieces or logprobs:
                yield AnswerDelta(self.number, pieces, item.tokens, logprobs)
        elif isinstance(item, PromptEcho):
            yield AnswerDelta(self.number, [Text(item.text)], item.tokens, item.logprobs)
        elif isinstance(item, Completion):
            yield from self._end(item)
        else:
            raise item

    def _end(self, whole: Completion) -> Iterator[Event]:
        if whole.finish_reason == "cancelled":
            raise UnavailableError("the model is leaving; try again later")
        rest, called = self._reader.end(whole.stop)
        reason: Reason = "tool_calls" if called and whole.finish_reason == "stop" else whole.finish_reason
        if rest:
            yield AnswerDelta(self.number, rest, (), None)
        timings = whole.timings
        if self.meter is not None:
            self.meter.end(
                reason, prompt=timings.prompt_tokens, cached=timings.reused_tokens, waited=timings.waited
            )
            self.meter = None
        yield AnswerEnd(self.number, reason, whole.stop, timings)
