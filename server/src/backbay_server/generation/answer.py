"""Answers in progress: what the engine's threads give becomes events in the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

from backbay_engine import LLM, AnswerReader, Completion, Handle, Sampled, Text, Tokenizer, TokenStep

from ..errors import UnavailableError
from ..watching import Meter
from .bridge import Bridge
from .events import Delta, Event, Finish, Reason, Usage
from .prompts import Made


class Echo(NamedTuple):
    """A prompt as the beginning of its answer: its text, its tokens, and their log-probabilities if asked for."""

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[Sampled] | None


@final
class Answer:
    """The answers to one request: an asynchronous iterator of their events, in the order in which they come."""

    def __init__(self, model: str, llm: LLM, bridge: Bridge) -> None:
        self.model, self._llm = model, llm
        self.prompts: Sequence[Made] = ()
        self._bridge, self._choices = bridge, list[_Choice]()
        self._items = deque[tuple[_Choice, Any]]()
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False

    def begin(
        self, submit: Callable[..., Handle[Completion] | None], reader: AnswerReader, echo: Echo | None = None
    ) -> None:
        """Submit a request for one more choice. Any thread may call it; once closed, the request ends at once."""
        choice = _Choice(len(self._choices), reader, self._llm.end_ids)
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
        return self._llm.tokenizer

    @property
    def context(self) -> int:
        return self._llm.context

    @property
    def prompt_tokens(self) -> int:
        """The tokens of all prompts; those of pictures are known at the answer's end."""
        return sum(len(prompt) for prompt in self.prompts if isinstance(prompt, list))

    def measure(self, begin: Callable[[], Meter]) -> None:
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
                running -= isinstance(event, Finish)

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
        self.meter: Meter | None = None  # None before the request has begun, and after its end

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
                yield Delta(self.number, pieces, item.tokens, logprobs)
        elif isinstance(item, Echo):
            yield Delta(self.number, [Text(item.text)], item.tokens, item.logprobs)
        elif isinstance(item, Completion):
            yield from self._end(item)
        else:
            raise item

    def _end(self, whole: Completion) -> Iterator[Event]:
        if whole.finish_reason == "cancelled":
            raise UnavailableError("the model is leaving; try again later")
        cut = whole.stop is not None and self._reader.is_calling
        rest = self._reader.finish()
        if rest:
            yield Delta(self.number, rest, (), None)
        called = self._reader.calls and whole.finish_reason == "stop" and not cut
        reason: Reason = "tool_calls" if called else whole.finish_reason
        timings = whole.timings
        if self.meter is not None:
            self.meter.end(
                reason, prompt=timings.prompt_tokens, cached=timings.reused_tokens, waited=timings.waited
            )
            self.meter = None
        usage = Usage(timings.prompt_tokens, timings.reused_tokens, timings.tokens)
        yield Finish(self.number, reason, whole.stop, usage, timings)
