"""Answering by responses."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Final

from backbay_engine import Reasoning

from ....errors import InvalidRequestError
from ....generation import Answer, Conversation, Finish, Options, Request
from ....transport.answers import Json, Stream, event_sse, event_stream
from ...endpoint import Call, Endpoint
from ...logprobs import chosen_of
from ..conversations import conversation_of, functions_tools
from ..formats import TextFormat, format_of
from ..sampling import effort_variables
from . import answers, events
from .conversations import messages_of
from .output import Output
from .requests import NamedFunction, ReasoningOptions, ResponsesRequest, TextOptions

LOGPROBS: Final = "message.output_text.logprobs"
INCLUDED: Final = frozenset((LOGPROBS, "reasoning.encrypted_content"))  # the latter names what is never there


async def respond(call: Call, body: ResponsesRequest) -> Json | Stream:
    """Answer a conversation in items."""
    request = _request(body)
    answering = _Answering(call, body)
    if body.stream:
        return event_stream(_events(call, request, answering))
    async with call.services.generator.answering(request) as answer:
        async for _ in answering.told(answer):
            pass
        return Json(answering.response)


async def count_tokens(call: Call, body: ResponsesRequest) -> Json:
    """Count the tokens of a conversation in items."""
    [conversation] = _request(body).prompts
    assert isinstance(conversation, Conversation)
    generator = call.services.generator
    with await generator.lease(body.model) as lease:
        return Json(answers.InputTokens(await generator.count(lease.llm, conversation)))


def _request(body: ResponsesRequest) -> Request:
    unknown = [each for each in body.include or () if each not in INCLUDED]
    if unknown:
        raise InvalidRequestError(f"include cannot have {unknown[0]!r}", param="include")
    logprobs = body.top_logprobs
    if logprobs is None and LOGPROBS in (body.include or ()):
        logprobs = 0
    options = Options(
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=logprobs,
        response_format=None if body.text is None else format_of(body.text.format),
    )
    named = body.tool_choice.name if isinstance(body.tool_choice, NamedFunction) else None
    choice = None if isinstance(body.tool_choice, NamedFunction) else body.tool_choice
    conversation = Conversation(
        conversation_of(messages_of(body)),
        tools=functions_tools(body.tools or (), choice, named, body.parallel_tool_calls),
        variables=effort_variables(None if body.reasoning is None else body.reasoning.effort),
    )
    return Request(body.model, [conversation], options)


def _text_options(given: TextOptions | None) -> TextOptions:
    """The form of the text, as the answer tells it."""
    given = given or TextOptions()
    return TextOptions(given.format or TextFormat(), given.verbosity)


async def _events(call: Call, request: Request, answering: _Answering) -> AsyncGenerator[bytes, None]:
    number = 0
    async with call.services.generator.answering(request) as answer:
        async for event in answering.told(answer):
            event.sequence_number = number
            number += 1
            yield event_sse(event)


class _Answering:
    """A response in progress."""

    def __init__(self, call: Call, body: ResponsesRequest) -> None:
        self._output = Output(call.id)
        self._reasoned = 0
        self.response = answers.Response(
            id=f"resp_{call.id}",
            created_at=int(time.time()),
            model=body.model or "",
            status="in_progress",
            output=[],
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or ReasoningOptions(),
            temperature=body.temperature,
            text=_text_options(body.text),
            tool_choice=body.tool_choice or "auto",
            tools=list(body.tools or ()),
            top_p=body.top_p,
        )

    async def told(self, answer: Answer) -> AsyncGenerator[events.StreamEvent, None]:
        """The events of the answer; at their end, the response is whole."""
        self.response.model, begun = answer.model, False
        async for event in answer:
            if not begun:
                begun = True
                yield events.Created(response=self.response)
                yield events.InProgress(response=self.response)
            if isinstance(event, Finish):
                for each in self._finish(event):
                    yield each
                continue
            logprobs = chosen_of(answer.tokenizer, event.logprobs) if event.logprobs else []
            if any(isinstance(piece, Reasoning) for piece in event.pieces):
                self._reasoned += len(event.tokens)
            for piece in event.pieces:
                for each in self._output.grow(piece, logprobs):
                    yield each
                logprobs = []  # they are told once

    def _finish(self, end: Finish) -> list[events.StreamEvent]:
        cut = end.reason == "length"
        status: answers.Status = "incomplete" if cut else "completed"
        told = list(self._output.finish(status))
        used, response = end.usage, self.response
        response.status, response.output = status, self._output.items
        response.incomplete_details = answers.Incomplete() if cut else None
        response.usage = answers.Usage(
            used.prompt,
            answers.InputDetails(used.cached),
            used.generated,
            answers.OutputDetails(self._reasoned),
            used.prompt + used.generated,
        )
        return [*told, events.Shortened(response=response) if cut else events.Completed(response=response)]


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/responses/input_tokens", count_tokens, ResponsesRequest, answers.InputTokens),
    Endpoint("POST", "/v1/responses", respond, ResponsesRequest, answers.Response, events.StreamEvent),
)
