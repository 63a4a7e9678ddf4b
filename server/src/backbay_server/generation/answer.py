"""Answers in progress: what the engine's threads give becomes events in the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, final

from backbay_engine import LLM, Completion, Handle, Tokenizer, TokenStep

from ..errors import UnavailableError
from .bridge import Bridge
from .calls import PLAIN, AnswerForm, AnswerParser, Piece, Text
from .events import Delta, Event, Finish, Usage


@final
class Answer:
    """The answers to one request: an asynchronous iterator of their events, in the order in which they come."""

    def __init__(self, model: str, llm: LLM, bridge: Bridge) -> None:
        self.model, self._llm = model, llm
        self.prompt_tokens = 0  # of all prompts, before the first event
        self._bridge, self._choices = bridge, list[_Choice]()
        self._items = deque[tuple[_Choice, Any]]()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def begin(
        self, submit: Callable[[Callable[[Any], None]], Handle[Completion]], form: AnswerForm, inside: bool
    ) -> None:
        """Submit a request for one more choice. Any thread may call it; once closed, the request ends at once."""
        choice = _Choice(len(self._choices), form, inside)

        def on_step(item: Any) -> None:
            self._bridge.call(self._take, (choice, item))

        self._choices.append(choice)
        choice.handle = submit(on_step)
        if self._closed:  # in the meantime
            choice.handle.cancel()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    def close(self) -> None:
        """End what still runs. Closing again does nothing."""
        self._closed = True
        for choice in self._choices:
            if choice.handle is not None:
                choice.handle.cancel()

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

    def __init__(self, number: int, form: AnswerForm, inside: bool) -> None:
        self.number = number
        self.handle: Handle[Completion] | None = None
        self._parser = AnswerParser(form, inside=inside) if form != PLAIN else None

    def events(self, item: Any) -> Iterator[Event]:
        """The events of what the engine gave: a step, the completion, or an error."""
        if isinstance(item, TokenStep):
            pieces = self._pieces(item.text)
            if pieces or item.logprobs:
                yield Delta(self.number, pieces, item.tokens, item.logprobs)
        elif isinstance(item, Completion):
            yield from self._end(item)
        else:
            raise item

    def _pieces(self, text: str) -> list[Piece]:
        if self._parser is not None:
            return self._parser.push(text)
        return [Text(text)] if text else []

    def _end(self, whole: Completion) -> Iterator[Event]:
        if whole.finish_reason == "cancelled":
            raise UnavailableError("the model is leaving; try again later")
        rest = self._parser.finish() if self._parser is not None else []
        if rest:
            yield Delta(self.number, rest, (), None)
        called = self._parser is not None and self._parser.calls and whole.finish_reason == "stop"
        timings = whole.timings
        usage = Usage(timings.prompt_tokens, timings.reused_tokens, timings.tokens)
        yield Finish(self.number, "tool_calls" if called else whole.finish_reason, whole.stop, usage)
