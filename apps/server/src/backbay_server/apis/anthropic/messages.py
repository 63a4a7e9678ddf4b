"""The endpoints of Anthropic's messages: answers whole, or in the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, final

from backbay_engine import CallBegun, Piece, Reasoning, Text, ToolCall

from ...generation import Answer, AnswerDelta, AnswerEnd, Request
from ...transport.answers import JsonResponse, StreamResponse, event_sse, event_stream, named_sse
from ..endpoint import Endpoint, EndpointCall
from . import answers
from .answers import Block, Event, Message, StopReason, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from .conversations import conversation_of, options_of
from .requests import CountRequest, MessagesRequest

_REASONS: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


async def create_message(call: EndpointCall, body: MessagesRequest) -> JsonResponse | StreamResponse:
    """Answer a conversation, in Anthropic's form."""
    conversation = await call.converted(conversation_of, body)
    request = Request(body.model, [conversation], options_of(body))
    if body.stream:
        return replace(event_stream(_events(call, request)), framed=partial(named_sse, "error"))
    async with call.services.generator.answering(request) as answer:
        growing = _Growing(call, answer)
        async for _ in growing.events():
            pass
        return JsonResponse(growing.message)


async def count_tokens(call: EndpointCall, body: CountRequest) -> JsonResponse:
    """Count the tokens of a conversation, in Anthropic's form."""
    conversation = await call.converted(conversation_of, body)
    return JsonResponse(answers.TokenCount(await call.services.generator.count(body.model, conversation)))


async def _events(call: EndpointCall, request: Request) -> AsyncGenerator[bytes, None]:
    async with call.services.generator.answering(request) as answer:
        async for event in _Growing(call, answer).events():
            yield event_sse(event)


@final
class _Growing:
    """A message in progress. A block ends when a piece of another kind comes."""

    def __init__(self, call: EndpointCall, answer: Answer) -> None:
        prompt = answer.prompts[0]  # the tokens of pictures are known at the answer's end
        known = len(prompt) if isinstance(prompt, list) else 0
        self.message = Message(f"msg_{call.id}", answer.model, [], Usage(known, 0))
        self._answer = answer
        self._block: Block | None = None  # the one that grows
        self._texts = list[str]()  # of it

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events of the answer; at their end, the message is whole."""
        begun = False
        async for event in self._answer:
            if not begun:
                begun = True
                yield answers.MessageStart(self.message)
            for each in self._events_of(event):
                yield each

    def _events_of(self, event: AnswerDelta | AnswerEnd) -> Iterator[Event]:
        if isinstance(event, AnswerDelta):
            for piece in event.pieces:
                yield from self._grow(piece)
            return
        yield from self._end_block()
        times, cut = event.timings, event.stop is not None
        prompt = times.prompt_tokens - times.reused_tokens
        usage = Usage(prompt, times.tokens, cache_read_input_tokens=times.reused_tokens)
        self.message.usage, self.message.stop_sequence = usage, event.stop
        self.message.stop_reason = reason = "stop_sequence" if cut else _REASONS[event.reason]
        yield answers.MessageDelta(answers.MessageEnd(reason, event.stop), usage)
        yield answers.MessageStop()

    def _grow(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case CallBegun(_, id, name):
                yield from self._begin_block(ToolUseBlock(id, name, {}))
                return
            case Text(text):
                if not isinstance(self._block, TextBlock):
                    yield from self._begin_block(TextBlock(""))
                yield self._delta(answers.TextDelta(text))
            case Reasoning(text):
                if not isinstance(self._block, ThinkingBlock):
                    yield from self._begin_block(ThinkingBlock(""))
                yield self._delta(answers.ThinkingDelta(text))
            case _:
                yield self._delta(answers.ToolInputDelta(piece.text))
        self._texts.append(piece.text)

    def _begin_block(self, block: Block) -> Iterator[Event]:
        yield from self._end_block()
        self._block = block
        self.message.content.append(block)
        yield answers.BlockStart(len(self.message.content) - 1, block)

    def _end_block(self) -> Iterator[Event]:
        text = "".join(self._texts)
        match self._block:
            case None:
                return
            case TextBlock():
                self._block.text = text
            case ThinkingBlock():
                self._block.thinking = text
                yield self._delta(answers.SignatureDelta(""))
            case ToolUseBlock(id, name):
                self._block.input = ToolCall(id, name, text).values
        yield answers.BlockStop(len(self.message.content) - 1)
        self._block, self._texts = None, []

    def _delta(self, delta: answers.Delta) -> Event:
        return answers.BlockDelta(len(self.message.content) - 1, delta)


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/messages", create_message, MessagesRequest, Message, Event),
    Endpoint("POST", "/v1/messages/count_tokens", count_tokens, CountRequest, answers.TokenCount),
)
