"""Chat completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from msgspec import UNSET

from backbay_engine import CallBegun, Piece, Reasoning, Text, Tokenizer, joined

from ...generation import AnswerDelta, AnswerEnd, Request
from ...transport.answers import JsonResponse, StreamResponse, encode, event_stream, sse
from ..endpoint import Endpoint, EndpointCall
from ..measures import chosen_of
from . import answers
from .answers import ChatChunk, ChatCompletion, Usage, only_timings, usage_of
from .chat_requests import ChatRequest
from .conversations import request_of
from .generation_fields import require_choices, wants_usage

DONE: Final = sse(b"[DONE]")


async def chat(call: EndpointCall, body: ChatRequest) -> JsonResponse | StreamResponse:
    """Answer a conversation."""
    request = await call.converted(request_of, body)
    require_choices(call, request.n)
    if body.stream:
        return event_stream(_chunks(call, request, usage=wants_usage(body)))
    created = int(time.time())
    async with call.services.generator.answering(request) as answer:
        whole = await answer.whole()
        choices, ends = [_choice(*each, answer.tokenizer) for each in whole], [end for _, end in whole]
        usage, timings = usage_of(ends, request.n), only_timings(ends, request.n)
        name = f"chatcmpl-{call.id}"
        return JsonResponse(ChatCompletion(name, created, answer.model, choices, usage, timings=timings))


def _choice(deltas: Sequence[AnswerDelta], end: AnswerEnd, tokenizer: Tokenizer) -> answers.Choice:
    text, reasoning, called = joined(piece for delta in deltas for piece in delta.pieces)
    calls = [answers.ToolCall(call.id, answers.CalledFunction(call.name, call.arguments)) for call in called]
    message = answers.Message(
        text or (None if calls else ""), reasoning_content=reasoning or UNSET, tool_calls=calls or UNSET
    )
    sampled = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    shown = [each for some in sampled for each in chosen_of(tokenizer, some)]
    return answers.Choice(end.choice, message, end.reason, answers.Logprobs(shown) if sampled else None)


# -- the answer in pieces --------------------------------------------------------------------------------


async def _chunks(call: EndpointCall, request: Request, *, usage: bool) -> AsyncGenerator[bytes, None]:
    created, ends, begun = int(time.time()), list[AnswerEnd](), set[int]()
    async with call.services.generator.answering(request) as answer:

        def chunk(choices: list[answers.ChunkChoice], counted: Usage | None = None) -> bytes:
            shown = counted if usage else UNSET
            timings, name = only_timings(ends, request.n), f"chatcmpl-{call.id}"
            return sse(encode(ChatChunk(name, created, answer.model, choices, usage=shown, timings=timings)))

        async for event in answer:
            if event.choice not in begun:
                begun.add(event.choice)
                yield chunk([answers.ChunkChoice(event.choice, answers.Delta("assistant", ""))])
            if isinstance(event, AnswerEnd):
                ends.append(event)
                yield chunk([answers.ChunkChoice(event.choice, answers.Delta(), finish_reason=event.reason)])
            else:
                for choice in _grown(event, answer.tokenizer):
                    yield chunk([choice])
        if usage:
            yield chunk([], usage_of(ends, request.n))
    yield DONE


def _grown(event: AnswerDelta, tokenizer: Tokenizer) -> list[answers.ChunkChoice]:
    """The choices of the chunks: one for each piece, since clients read only the first choice of a chunk."""
    deltas = [_delta(piece) for piece in event.pieces] or [answers.Delta(content="")]
    grown = [answers.ChunkChoice(event.choice, delta) for delta in deltas]
    if event.logprobs:
        grown[0].logprobs = answers.Logprobs(chosen_of(tokenizer, event.logprobs))
    return grown


def _delta(piece: Piece) -> answers.Delta:
    match piece:
        case Text(text):
            return answers.Delta(content=text)
        case Reasoning(text):
            return answers.Delta(reasoning_content=text)
        case CallBegun(number, id, name):
            begun = answers.FunctionDelta(name, "")
            return answers.Delta(tool_calls=[answers.ToolCallDelta(number, id, "function", begun)])
        case _:
            more = answers.FunctionDelta(arguments=piece.text)
            return answers.Delta(tool_calls=[answers.ToolCallDelta(piece.number, function=more)])


ENDPOINTS: Final = (Endpoint("POST", "/v1/chat/completions", chat, ChatRequest, ChatCompletion, ChatChunk),)
