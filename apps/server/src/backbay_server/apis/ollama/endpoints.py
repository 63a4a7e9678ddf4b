"""The endpoints that answer: chat and generate; and those that embed texts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any, Final, final

from backbay_engine import CallArguments, CallBegun, Reasoning, Text, Tokenizer, ToolCall

from ...generation import AnswerDelta, Request
from ...transport.answers import JSON_LINES, JsonResponse, StreamResponse, encode, json_line
from ..endpoint import Endpoint, EndpointCall
from ..measures import ChosenLogprob, chosen_of
from . import answers
from .answers import AnswerLine, CalledFunction, ChatLine, Embedding, EmbeddingList, GenerateLine, Message
from .conversations import chat_request, generate_request, name_of
from .requests import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, GenerationBody


async def chat(call: EndpointCall, body: ChatRequest) -> JsonResponse | StreamResponse:
    """Answer a conversation, in Ollama's form."""
    if not body.messages:
        return await _load(call, body)
    return await _answer(call, body, await call.converted(chat_request, body))


async def generate(call: EndpointCall, body: GenerateRequest) -> JsonResponse | StreamResponse:
    """Answer a prompt, in Ollama's form."""
    if not (body.prompt or body.images):
        return await _load(call, body)
    return await _answer(call, body, await call.converted(generate_request, body))


async def _answer(
    call: EndpointCall, body: GenerationBody, request: Request
) -> JsonResponse | StreamResponse:
    streamed = body.stream is not False
    lines = _lines(call, body, request, streamed=streamed)
    if not streamed:
        return JsonResponse([each async for each in lines][-1])

    async def encoded() -> AsyncGenerator[bytes, None]:
        async with aclosing(lines):
            async for each in lines:
                yield json_line(encode(each))

    return StreamResponse(encoded(), JSON_LINES, json_line)


async def _lines(
    call: EndpointCall, body: GenerationBody, request: Request, *, streamed: bool
) -> AsyncGenerator[AnswerLine, None]:
    """The lines of an answer; if it is not streamed, its last line alone, with everything."""
    began, first = perf_counter_ns(), 0
    async with call.services.generator.answering(request) as answer:
        submitted = perf_counter_ns()
        parts = _Parts(answer.tokenizer)
        async for event in answer:
            first = first or perf_counter_ns()
            if isinstance(event, AnswerDelta):
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
                prompt_eval_count=event.timings.prompt_tokens,
                prompt_eval_duration=first - submitted,
                eval_count=event.timings.tokens,
                eval_duration=perf_counter_ns() - first,
            )


async def _load(call: EndpointCall, body: GenerationBody) -> JsonResponse:
    """Load the model, which is what a request without a prompt asks for."""
    began = perf_counter_ns()
    with await call.services.generator.lease(name_of(body)) as lease:
        took = perf_counter_ns() - began
        numbers = {"done_reason": "load", "load_duration": took, "total_duration": took}
        return JsonResponse(_line(body, lease.name, _New(), done=True, **numbers))


def _line(body: GenerationBody, model: str, grown: _New, **more: Any) -> AnswerLine:
    common = {"model": model, "created_at": datetime.now(UTC).isoformat(), "logprobs": grown.logprobs, **more}
    thinking = grown.reasoning or None
    if isinstance(body, ChatRequest):
        message = Message("assistant", grown.text, thinking, grown.calls or None)
        return ChatLine(message=message, **common)
    return GenerateLine(response=grown.text, thinking=thinking, **common)


@final
@dataclass
class _New:
    """What is new since the last line."""

    text: str = ""
    reasoning: str = ""
    calls: list[answers.CalledTool] = field(default_factory=list)
    logprobs: list[ChosenLogprob] | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.calls or self.logprobs)


@final
class _Parts:
    """Collects the pieces of an answer until they are taken."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._new = tokenizer, _New()
        self._open: tuple[CallBegun, list[str]] | None = None

    def add(self, delta: AnswerDelta) -> None:
        for piece in delta.pieces:
            match piece:
                case Text(text):
                    self._new.text += text
                case Reasoning(text):
                    self._new.reasoning += text
                case CallBegun():
                    self._end_call()
                    self._open = piece, []
                case CallArguments(_, text):
                    assert self._open is not None
                    self._open[1].append(text)
        if delta.logprobs is not None:
            shown = chosen_of(self._tokenizer, delta.logprobs)
            self._new.logprobs = [*(self._new.logprobs or ()), *shown]

    def taken(self, *, last: bool = False) -> _New:
        """What is new; a call that still grows is left for later, unless this is the last time."""
        if last:
            self._end_call()
        taken, self._new = self._new, _New()
        return taken

    def _end_call(self) -> None:
        if self._open is not None:
            begun, arguments = self._open
            values = ToolCall(begun.id, begun.name, "".join(arguments)).values
            self._new.calls.append(answers.CalledTool(begun.id, CalledFunction(begun.name, values)))
        self._open = None


async def embed(call: EndpointCall, body: EmbedRequest) -> JsonResponse:
    """Embed texts, in Ollama's form."""
    began = perf_counter_ns()
    texts = [body.input] if isinstance(body.input, str) else body.input
    found = await call.services.generator.embed(name_of(body), texts, cut=body.truncate is True)
    return JsonResponse(
        EmbeddingList(found.model, found.rows.tolist(), perf_counter_ns() - began, 0, found.tokens)
    )


async def embed_one(call: EndpointCall, body: EmbeddingsRequest) -> JsonResponse:
    """Embed one text, in Ollama's older form."""
    found = await call.services.generator.embed(name_of(body), [body.prompt])
    return JsonResponse(Embedding(found.rows[0].tolist()))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/api/chat", chat, ChatRequest, ChatLine, ChatLine, JSON_LINES),
    Endpoint("POST", "/api/generate", generate, GenerateRequest, GenerateLine, GenerateLine, JSON_LINES),
    Endpoint("POST", "/api/embed", embed, EmbedRequest, EmbeddingList),
    Endpoint("POST", "/api/embeddings", embed_one, EmbeddingsRequest, Embedding),
)
