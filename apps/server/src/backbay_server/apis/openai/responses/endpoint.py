"""Answering by responses."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Final, final

from backbay_engine import CallBegun, Piece, Reasoning, Text

from ....errors import InvalidRequestError
from ....generation import Answer, AnswerEnd, AnswerOptions, Conversation, Request
from ....transport.answers import JsonResponse, StreamResponse, event_sse, event_stream
from ...endpoint import Endpoint, EndpointCall
from ...measures import ChosenLogprob, chosen_of
from ..conversations import functions_tools, template_messages
from ..generation_fields import TextFormat, effort_variables, format_of
from . import answers
from .answers import FunctionCall, Item, Message, OutputText, ReasoningText, StreamEvent
from .requests import NamedFunction, ReasoningOptions, ResponsesRequest, TextOptions, messages_of

LOGPROBS: Final = "message.output_text.logprobs"
INCLUDED: Final = frozenset((LOGPROBS, "reasoning.encrypted_content"))  # the latter names what is never there


async def respond(call: EndpointCall, body: ResponsesRequest) -> JsonResponse | StreamResponse:
    """Answer a conversation in items."""
    request = await call.converted(_request, body)
    if body.stream:
        return event_stream(_events(call, body, request))
    async with call.services.generator.answering(request) as answer:
        growing = _Growing(call, body, answer)
        async for _ in growing.events():
            pass
        return JsonResponse(growing.response)


async def count_tokens(call: EndpointCall, body: ResponsesRequest) -> JsonResponse:
    """Count the tokens of a conversation in items."""
    [conversation] = (await call.converted(_request, body)).prompts
    assert isinstance(conversation, Conversation)
    return JsonResponse(
        answers.InputTokenCount(await call.services.generator.count(body.model, conversation))
    )


def _request(body: ResponsesRequest) -> Request:
    if unknown := [each for each in body.include or () if each not in INCLUDED]:
        raise InvalidRequestError(f"include cannot have {unknown[0]!r}", param="include")
    logprobs = body.top_logprobs
    if logprobs is None and LOGPROBS in (body.include or ()):
        logprobs = 0
    options = AnswerOptions(
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        logprobs=logprobs,
        response_format=None if body.text is None else format_of(body.text.format, "text.format"),
    )
    choice = body.tool_choice
    choice, named = (None, choice.name) if isinstance(choice, NamedFunction) else (choice, None)
    conversation = Conversation(
        template_messages(messages_of(body)),
        tools=functions_tools(body.tools or (), choice, named, body.parallel_tool_calls),
        variables=effort_variables(None if body.reasoning is None else body.reasoning.effort),
    )
    return Request(body.model, [conversation], options)


async def _events(
    call: EndpointCall, body: ResponsesRequest, request: Request
) -> AsyncGenerator[bytes, None]:
    number = 0
    async with call.services.generator.answering(request) as answer:
        async for event in _Growing(call, body, answer).events():
            event.sequence_number = number
            number += 1
            yield event_sse(event)


@final
class _Growing:
    """A response in progress. At most the last one of its items still grows."""

    def __init__(self, call: EndpointCall, body: ResponsesRequest, answer: Answer) -> None:
        self._id, self._answer = call.id, answer
        self._growing: Item | None = None
        self._texts, self._logprobs = list[str](), list[ChosenLogprob]()  # of the growing item
        self._reasoned = 0
        text = body.text or TextOptions()
        self.response = answers.Response(
            id=f"resp_{call.id}",
            created_at=int(time.time()),
            model=answer.model,
            status="in_progress",
            output=[],
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or ReasoningOptions(),
            temperature=body.temperature,
            text=TextOptions(text.format or TextFormat(), text.verbosity),
            tool_choice=body.tool_choice or "auto",
            tools=list(body.tools or ()),
            top_p=body.top_p,
        )

    async def events(self) -> AsyncGenerator[StreamEvent, None]:
        """The events of the answer; at their end, the response is whole."""
        begun = False
        async for event in self._answer:
            if not begun:
                begun = True
                yield answers.ResponseCreated(response=self.response)
                yield answers.ResponseInProgress(response=self.response)
            if isinstance(event, AnswerEnd):
                for each in self._finish(event):
                    yield each
                continue
            logprobs = chosen_of(self._answer.tokenizer, event.logprobs) if event.logprobs else []
            if any(isinstance(piece, Reasoning) for piece in event.pieces):
                self._reasoned += len(event.tokens)
            for piece in event.pieces:
                for each in self._grow(piece, logprobs):
                    yield each
                logprobs = []  # they are told once

    def _finish(self, end: AnswerEnd) -> Iterator[StreamEvent]:
        cut, times, response = end.reason == "length", end.timings, self.response
        response.status = "incomplete" if cut else "completed"
        yield from self._end_item(response.status)
        response.incomplete_details = answers.IncompleteDetails() if cut else None
        response.usage = answers.Usage(
            times.prompt_tokens,
            answers.InputDetails(times.reused_tokens),
            times.tokens,
            answers.OutputDetails(self._reasoned),
            times.prompt_tokens + times.tokens,
        )
        yield (
            answers.ResponseIncomplete(response=response)
            if cut
            else answers.ResponseCompleted(response=response)
        )

    def _grow(self, piece: Piece, logprobs: Sequence[ChosenLogprob]) -> Iterator[StreamEvent]:
        match piece:
            case CallBegun(_, id, name):
                yield from self._begin_item(FunctionCall(self._name("fc"), "in_progress", id, name))
                return
            case Text(text):
                if not isinstance(self._growing, Message):
                    yield from self._begin_item(Message(self._name("msg"), "in_progress"), OutputText(""))
                self._logprobs += logprobs
                yield answers.TextDelta(**self._place(), delta=text, logprobs=list(logprobs))
            case Reasoning(text):
                if not isinstance(self._growing, answers.Reasoning):
                    item = answers.Reasoning(self._name("rs"), "in_progress")
                    yield from self._begin_item(item, ReasoningText(""))
                yield answers.ReasoningDelta(**self._place(), delta=text)
            case _:
                yield answers.ArgumentsDelta(**self._place(), delta=piece.text)
        self._texts.append(piece.text)

    def _begin_item(
        self, item: Item, part: OutputText | ReasoningText | None = None
    ) -> Iterator[StreamEvent]:
        yield from self._end_item("completed")
        self.response.output.append(item)
        self._growing = item
        yield answers.ItemAdded(output_index=len(self.response.output) - 1, item=item)
        if part is not None:
            yield answers.PartAdded(**self._place(), part=part)

    def _end_item(self, status: answers.Status) -> Iterator[StreamEvent]:
        item, text = self._growing, "".join(self._texts)
        if item is None:
            return
        place = self._place()
        item.status = status
        match item:
            case FunctionCall():
                item.arguments = text
                yield answers.ArgumentsDone(**place, name=item.name, arguments=text)
            case Message():
                item.content = [OutputText(text, logprobs=self._logprobs)]
                yield answers.TextDone(**place, text=text, logprobs=self._logprobs)
                yield answers.PartDone(**place, part=item.content[0])
            case answers.Reasoning():
                item.content = [ReasoningText(text)]
                yield answers.ReasoningDone(**place, text=text)
                yield answers.PartDone(**place, part=item.content[0])
        yield answers.ItemDone(output_index=place["output_index"], item=item)
        self._growing, self._texts, self._logprobs = None, [], []

    def _place(self) -> answers.ItemPlace:
        return {"item_id": self.response.output[-1].id, "output_index": len(self.response.output) - 1}

    def _name(self, kind: str) -> str:
        return f"{kind}_{self._id}_{len(self.response.output)}"


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/responses/input_tokens", count_tokens, ResponsesRequest, answers.InputTokenCount),
    Endpoint("POST", "/v1/responses", respond, ResponsesRequest, answers.Response, answers.StreamEvent),
)
