"""The endpoints that answer: chat and generate."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any, Final

from ...generation import Delta, Request
from ...transport.answers import JSON_LINES, Json, Stream, encode, json_lines, line
from ..endpoint import Call, Endpoint
from .answers import ChatLine, GenerateLine, Line, Message
from .conversations import chat_request, generate_request, name_of
from .parts import Grown, Parts
from .requests import ChatRequest, GenerateRequest, Generating


async def chat(call: Call, body: ChatRequest) -> Json | Stream:
    """Answer a conversation, in Ollama's form."""
    return await (_answer(call, body, chat_request(body)) if body.messages else _load(call, body))


async def generate(call: Call, body: GenerateRequest) -> Json | Stream:
    """Answer a prompt, in Ollama's form."""
    return await (
        _answer(call, body, generate_request(body)) if body.prompt or body.images else _load(call, body)
    )


async def _answer(call: Call, body: Generating, request: Request) -> Json | Stream:
    streamed = body.stream is not False
    lines = _lines(call, body, request, streamed=streamed)
    if streamed:
        return json_lines(_encoded(lines))
    return Json([each async for each in lines][-1])


async def _encoded(lines: AsyncGenerator[Line, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(lines):
        async for each in lines:
            yield line(encode(each))


async def _lines(
    call: Call, body: Generating, request: Request, *, streamed: bool
) -> AsyncGenerator[Line, None]:
    """The lines of an answer; if it is not streamed, its last line alone, with everything."""
    began, first = perf_counter_ns(), 0
    async with call.services.generator.answering(request) as answer:
        submitted = perf_counter_ns()
        parts = Parts(answer.tokenizer)
        async for event in answer:
            first = first or perf_counter_ns()
            if isinstance(event, Delta):
                parts.add(event)
                if streamed and (grown := parts.taken()):
                    yield _line(body, answer.model, grown, done=False)
                continue
            yield _line(
                body,
                answer.model,
                parts.taken(last=True),
                done=True,
                done_reason="length" if event.reason == "length" else "stop",
                total_duration=perf_counter_ns() - began,
                load_duration=submitted - began,
                prompt_eval_count=event.usage.prompt,
                prompt_eval_duration=first - submitted,
                eval_count=event.usage.generated,
                eval_duration=perf_counter_ns() - first,
            )


async def _load(call: Call, body: Generating) -> Json:
    """Load the model, which is what a request without a prompt asks for."""
    began = perf_counter_ns()
    with await call.services.generator.lease(name_of(body)) as lease:
        took = perf_counter_ns() - began
        numbers = {"done_reason": "load", "load_duration": took, "total_duration": took}
        return Json(_line(body, lease.name, Grown(), done=True, **numbers))


def _line(body: Generating, model: str, grown: Grown, **more: Any) -> Line:
    common = {"model": model, "created_at": datetime.now(UTC).isoformat(), "logprobs": grown.logprobs, **more}
    thinking = grown.reasoning or None
    if isinstance(body, ChatRequest):
        message = Message("assistant", grown.text, thinking, grown.calls or None)
        return ChatLine(message=message, **common)
    return GenerateLine(response=grown.text, thinking=thinking, **common)


ENDPOINTS: Final = (
    Endpoint("POST", "/api/chat", chat, ChatRequest, ChatLine, ChatLine, JSON_LINES),
    Endpoint("POST", "/api/generate", generate, GenerateRequest, GenerateLine, GenerateLine, JSON_LINES),
)
