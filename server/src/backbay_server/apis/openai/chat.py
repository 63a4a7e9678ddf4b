"""Chat completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Final

from msgspec import UNSET

from backbay_engine import CallBegun, Piece, Reasoning, Sampled, Text, Tokenizer, Tools, joined

from ...errors import InvalidRequestError
from ...generation import Answer, Conversation, Delta, Finish, Request
from ...transport.answers import Json, Stream, encode, event_stream, sse
from ..endpoint import Call, Endpoint
from ..logprobs import chosen_of
from . import chat_answers as told
from .chat_requests import AllowedTools, ChatRequest, NamedTool
from .conversations import conversation_of, functions_tools
from .formats import format_of
from .sampling import effort_variables, options_of, require_choices, wants_usage
from .usage import Usage, only_timings, usage_of

DONE: Final = sse(b"[DONE]")


async def chat(call: Call, body: ChatRequest) -> Json | Stream:
    """Answer a conversation."""
    request = _request(body)
    require_choices(call, request.n)
    name = f"chatcmpl-{call.id}"
    if body.stream:
        return event_stream(_chunks(call, request, name, usage=wants_usage(body)))
    async with call.services.generator.answering(request) as answer:
        return Json(await _completion(answer, request, name))


def _request(body: ChatRequest) -> Request:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    most: int | None = getattr(body, name)
    if most == 0:
        raise InvalidRequestError(f"{name} must be 1 or more, or -1", param=name)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    options = options_of(body, None if most == -1 else most, logprobs, format_of(body.response_format))
    return Request(body.model, [conversation_asked(body)], options, body.n or 1)


def conversation_asked(body: ChatRequest) -> Conversation:
    """The conversation of a request."""
    return Conversation(
        conversation_of(body.messages),
        tools=_tools(body),
        variables={**effort_variables(body.reasoning_effort), **(body.chat_template_kwargs or {})},
    )


def _tools(body: ChatRequest) -> Tools:
    functions = [tool.function for tool in body.tools or ()]
    match body.tool_choice:
        case NamedTool(named):
            return functions_tools(functions, None, named.name, body.parallel_tool_calls)
        case AllowedTools(allowed):
            names = {tool.function.name for tool in allowed.tools}
            if unknown := names - {each.name for each in functions}:
                raise InvalidRequestError(
                    f"tool_choice allows the tool {min(unknown)!r}, and tools has none", param="tool_choice"
                )
            some = [each for each in functions if each.name in names]
            return functions_tools(some, allowed.mode, None, body.parallel_tool_calls)
        case choice:
            return functions_tools(functions, choice, None, body.parallel_tool_calls)


# -- the whole answer ------------------------------------------------------------------------------------


async def _completion(answer: Answer, request: Request, name: str) -> told.ChatCompletion:
    created = int(time.time())
    collected = [_Collected() for _ in range(request.n)]
    ends = []
    async for event in answer:
        if isinstance(event, Finish):
            ends.append(event)
        else:
            collected[event.choice].add(event)
    choices = [
        collected[end.choice].choice(end, answer.tokenizer)
        for end in sorted(ends, key=lambda end: end.choice)
    ]
    return told.ChatCompletion(
        name, created, answer.model, choices, usage_of(ends, request.n), timings=only_timings(ends, request.n)
    )


class _Collected:
    """The pieces of one of the answers."""

    def __init__(self) -> None:
        self._pieces = list[Piece]()
        self._logprobs: list[Sampled] | None = None

    def add(self, delta: Delta) -> None:
        self._pieces += delta.pieces
        if delta.logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *delta.logprobs]

    def choice(self, end: Finish, tokenizer: Tokenizer) -> told.Choice:
        text, reasoning, called = joined(self._pieces)
        calls = [told.ToolCall(call.id, told.CalledFunction(call.name, call.arguments)) for call in called]
        message = told.Message(
            text or (None if calls else ""),
            reasoning_content=reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        logprobs = None if self._logprobs is None else told.Logprobs(chosen_of(tokenizer, self._logprobs))
        return told.Choice(end.choice, message, end.reason, logprobs)


# -- the answer in pieces --------------------------------------------------------------------------------


async def _chunks(call: Call, request: Request, name: str, *, usage: bool) -> AsyncGenerator[bytes, None]:
    created, ends = int(time.time()), list[Finish]()
    async with call.services.generator.answering(request) as answer:

        def chunk(choices: list[told.ChunkChoice], counted: Usage | None = None) -> bytes:
            shown = counted if usage else UNSET
            timings = only_timings(ends, request.n)
            return sse(
                encode(told.ChatChunk(name, created, answer.model, choices, usage=shown, timings=timings))
            )

        begun = set[int]()
        async for event in answer:
            if event.choice not in begun:
                begun.add(event.choice)
                yield chunk([told.ChunkChoice(event.choice, told.Delta(role="assistant", content=""))])
            if isinstance(event, Finish):
                ends.append(event)
                yield chunk([told.ChunkChoice(event.choice, told.Delta(), finish_reason=event.reason)])
            else:
                for choice in _grown(event, answer.tokenizer):
                    yield chunk([choice])
        if usage:
            yield chunk([], usage_of(ends, request.n))
    yield DONE


def _grown(event: Delta, tokenizer: Tokenizer) -> list[told.ChunkChoice]:
    """The choices of the chunks: one for each piece, since clients read only the first choice of a chunk."""
    deltas = [_delta(piece) for piece in event.pieces] or [told.Delta(content="")]
    grown = [told.ChunkChoice(event.choice, delta) for delta in deltas]
    if event.logprobs:
        grown[0].logprobs = told.Logprobs(chosen_of(tokenizer, event.logprobs))
    return grown


def _delta(piece: Piece) -> told.Delta:
    match piece:
        case Text(text):
            return told.Delta(content=text)
        case Reasoning(text):
            return told.Delta(reasoning_content=text)
        case CallBegun(number, id, name):
            begun = told.FunctionDelta(name, "")
            return told.Delta(tool_calls=[told.ToolCallDelta(number, id, "function", begun)])
        case _:
            more = told.FunctionDelta(arguments=piece.text)
            return told.Delta(tool_calls=[told.ToolCallDelta(piece.number, function=more)])


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/chat/completions", chat, ChatRequest, told.ChatCompletion, told.ChatChunk),
)
