"""The endpoints of Anthropic's messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from backbay_engine import Piece

from ...generation import Answer, Delta, Finish, Request
from ...transport.answers import Json, Stream, event_sse, event_stream, named_sse
from ..endpoint import Call, Endpoint
from .answers import (
    Count,
    Event,
    Message,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    StopReason,
    Usage,
)
from .blocks import GrowingBlocks, whole_blocks
from .conversations import conversation_of, options_of
from .requests import CountRequest, MessagesRequest

_REASONS: Final[dict[str, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


async def create_message(call: Call, body: MessagesRequest) -> Json | Stream:
    """Answer a conversation, in Anthropic's form."""
    request = Request(body.model, [conversation_of(body)], options_of(body))
    if body.stream:
        return replace(event_stream(_events(call, request)), framed=partial(named_sse, "error"))
    async with call.services.generator.answering(request) as answer:
        return Json(await _whole(answer, f"msg_{call.id}"))


async def _whole(answer: Answer, name: str) -> Message:
    pieces: list[Piece] = []
    message = Message(name, answer.model, [], Usage(answer.prompt_tokens, 0))
    async for event in answer:
        match event:
            case Delta():
                pieces += event.pieces
            case Finish():
                end = _end(event)
                message.content, message.usage = whole_blocks(pieces), _usage(event)
                message.stop_reason, message.stop_sequence = end.stop_reason, end.stop_sequence
    return message


async def count_tokens(call: Call, body: CountRequest) -> Json:
    """Count the tokens of a conversation, in Anthropic's form."""
    conversation = conversation_of(body)
    with await call.services.generator.lease(body.model) as lease:
        return Json(Count(await call.services.generator.count(lease.llm, conversation)))


async def _events(call: Call, request: Request) -> AsyncGenerator[bytes, None]:
    blocks, begun = GrowingBlocks(), False
    async with call.services.generator.answering(request) as answer:
        async for event in answer:
            if not begun:
                begun = True
                usage = Usage(answer.prompt_tokens, 0)
                yield _sent([MessageStart(Message(f"msg_{call.id}", answer.model, [], usage))])
            match event:
                case Delta():
                    yield _sent(each for piece in event.pieces for each in blocks.grow(piece))
                case Finish():
                    yield _sent(blocks.end())
                    yield _sent([MessageDelta(_end(event), _usage(event)), MessageStop()])


def _sent(events: Iterable[Event]) -> bytes:
    return b"".join(map(event_sse, events))


def _end(event: Finish) -> MessageEnd:
    return MessageEnd("stop_sequence" if event.stop is not None else _REASONS[event.reason], event.stop)


def _usage(event: Finish) -> Usage:
    used = event.usage
    return Usage(used.prompt - used.cached, used.generated, cache_read_input_tokens=used.cached)


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/messages", create_message, MessagesRequest, Message, Event),
    Endpoint("POST", "/v1/messages/count_tokens", count_tokens, CountRequest, Count),
)
