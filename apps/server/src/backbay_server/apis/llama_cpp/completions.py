"""Completions in the form of llama.cpp's server, and the filling of gaps in a text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final, final

from msgspec import UNSET

from ...generation import Answer, AnswerDelta, AnswerEnd, Request
from ...generation.requests import InfillGap
from ...transport.answers import JsonResponse, StreamResponse, encode, event_stream, sse
from ..endpoint import Endpoint, EndpointCall
from ..measures import ChosenLogprob, chosen_of, timings_of
from ..openai.completions import prompts_of
from ..openai.generation_fields import require_choices
from .answers import (
    Chunk,
    Completion,
    CompletionFields,
    GenerationSettings,
    StopType,
    select_fields,
)
from .requests import GenerationRequest, InfillRequest, PromptRequest, options_of


async def complete(call: EndpointCall, body: PromptRequest) -> JsonResponse | StreamResponse:
    """Continue prompts, in the form of llama.cpp's server."""
    prompts, n = prompts_of(body.prompt), body.n_cmpl or body.n or 1
    require_choices(call, len(prompts) * n)
    return await _answered(call, body, Request(body.model, prompts, options_of(body), n))


async def infill(call: EndpointCall, body: InfillRequest) -> JsonResponse | StreamResponse:
    """Fill the gap between two texts; a model without tokens for it sees the second one before the first."""
    others = [(each.filename or "tmp", each.text) for each in body.input_extra or ()]
    gap = InfillGap(body.input_prefix + (body.prompt or ""), body.input_suffix, others, plain=True)
    return await _answered(call, body, Request(body.model, [gap], options_of(body)))


async def _answered(
    call: EndpointCall, body: GenerationRequest, request: Request
) -> JsonResponse | StreamResponse:
    """The answers to a request: one, a list of several, or their stream."""
    if body.stream:
        return event_stream(_chunks(call, body, request))
    async with call.services.generator.answering(request) as answer:
        wholes: list[Any] = []
        for deltas, end in await answer.whole():
            grown = GrowingAnswer(answer, request, body, end.choice)
            for delta in deltas:
                grown.add(delta)
            whole, chosen = grown.end(end), body.response_fields
            wholes.append(select_fields(whole, chosen) if chosen else whole)
        return JsonResponse(wholes[0] if len(wholes) == 1 else wholes)


async def _chunks(
    call: EndpointCall, body: GenerationRequest, request: Request
) -> AsyncGenerator[bytes, None]:
    async with call.services.generator.answering(request) as answer:
        grown = [GrowingAnswer(answer, request, body, choice) for choice in range(request.choices)]
        async for event in answer:
            one = grown[event.choice]
            yield sse(encode(one.end(event) if isinstance(event, AnswerEnd) else one.add(event)))


@final
@dataclass
class GrowingAnswer:
    """One of the answers, as far as it has come."""

    answer: Answer
    request: Request
    body: GenerationRequest
    choice: int
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chosen: list[ChosenLogprob] = field(default_factory=list)

    def add(self, delta: AnswerDelta) -> Chunk:
        self.texts.append(delta.text)
        self.tokens += delta.tokens
        chosen = chosen_of(self.answer.tokenizer, delta.logprobs or ())
        self.chosen += chosen
        count = len(self._prompt) if isinstance(self._prompt, list) else 0
        chunk = Chunk(self.choice, delta.text, delta.tokens, len(self.tokens), count)
        chunk.completion_probabilities = chosen or UNSET
        return chunk

    def end(self, end: AnswerEnd) -> Completion:
        """The whole answer; the end of a stream has no text, and no tokens."""
        text, streamed = "".join(self.texts), bool(self.body.stream)
        most, times = self.request.options.max_tokens, end.timings
        stop_type: StopType = "word" if end.stop is not None else "limit" if end.reason == "length" else "eos"
        return Completion(
            index=self.choice,
            content="" if streamed else text,
            tokens=[] if streamed or not self.body.return_tokens else self.tokens,
            model=self.answer.model,
            prompt=self.answer.tokenizer.decode(self._prompt, special=True),
            tokens_predicted=times.tokens,
            tokens_evaluated=times.prompt_tokens,
            tokens_cached=times.prompt_tokens + times.tokens,
            has_new_line="\n" in text,
            stop_type=stop_type,
            stopping_word=end.stop or "",
            generation_settings=GenerationSettings(
                -1 if most is None else most, self.answer.llm.context, streamed
            ),
            timings=timings_of(times),
            completion_probabilities=UNSET if streamed or not self.chosen else self.chosen,
        )

    @property
    def _prompt(self) -> Any:
        return self.answer.prompts[self.choice // self.request.n]


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint(
        "POST", "/completion", complete, PromptRequest, CompletionFields | list[CompletionFields], Chunk
    ),
    Endpoint("POST", "/infill", infill, InfillRequest, CompletionFields, Chunk),
)
