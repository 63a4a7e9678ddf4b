"""Completions in the form of llama.cpp's server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final, final

from msgspec import UNSET

from backbay_engine import Text

from ...generation import Answer, Delta, Finish, Request
from ...transport.answers import Json, Stream, encode, event_stream, sse
from ..endpoint import Call, Endpoint
from ..logprobs import chosen_of
from ..openai.completions import prompts_of
from ..openai.sampling import require_choices
from ..timings import timings_of
from .answers import ChosenToken, Chunk, Completion, CompletionFields, Settings, StopType, with_fields
from .requests import PromptRequest, TextRequest, options_of


async def complete(call: Call, body: PromptRequest) -> Json | Stream:
    """Continue prompts, in the form of llama.cpp's server."""
    prompts, n = prompts_of(body.prompt), body.n_cmpl or body.n or 1
    require_choices(call, len(prompts) * n)
    return await answered(call, body, Request(body.model, prompts, options_of(body), n))


async def answered(call: Call, body: TextRequest, request: Request) -> Json | Stream:
    """The answers to a request: one, a list of several, or their stream."""
    if body.stream:
        return event_stream(_chunks(call, body, request))
    async with call.services.generator.answering(request) as answer:
        grown = [Grown(answer, request, body, choice) for choice in range(request.choices)]
        ends: list[Any] = [None] * request.choices
        async for event in answer:
            if isinstance(event, Finish):
                whole = grown[event.choice].end(event)
                chosen = body.response_fields
                ends[event.choice] = with_fields(whole, chosen) if chosen else whole
            else:
                grown[event.choice].add(event)
        return Json(ends[0] if len(ends) == 1 else ends)


async def _chunks(call: Call, body: TextRequest, request: Request) -> AsyncGenerator[bytes, None]:
    async with call.services.generator.answering(request) as answer:
        grown = [Grown(answer, request, body, choice) for choice in range(request.choices)]
        async for event in answer:
            one = grown[event.choice]
            yield sse(encode(one.end(event) if isinstance(event, Finish) else one.add(event)))


@final
@dataclass
class Grown:
    """One of the answers, as far as it has come."""

    answer: Answer
    request: Request
    body: TextRequest
    choice: int
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chosen: list[ChosenToken] = field(default_factory=list)

    def add(self, delta: Delta) -> Chunk:
        """What a step adds."""
        text = "".join(piece.text for piece in delta.pieces if isinstance(piece, Text))
        self.texts.append(text)
        self.tokens += delta.tokens
        chosen = [
            ChosenToken(told.token, told.logprob, told.bytes, told.top_logprobs, sampled.token)
            for sampled in delta.logprobs or ()
            for told in chosen_of(self.answer.tokenizer, [sampled])
        ]
        self.chosen += chosen
        count = len(self._prompt) if isinstance(self._prompt, list) else 0
        return Chunk(
            self.choice,
            text,
            delta.tokens,
            len(self.tokens),
            count,
            completion_probabilities=chosen or UNSET,
        )

    def end(self, end: Finish) -> Completion:
        """The whole answer; the end of a stream has no text, and no tokens."""
        text, streamed = "".join(self.texts), bool(self.body.stream)
        options = self.request.options
        return Completion(
            index=self.choice,
            content="" if streamed else text,
            tokens=[] if streamed or not self.body.return_tokens else self.tokens,
            model=self.answer.model,
            prompt=self.answer.tokenizer.decode(self._prompt, special=True),
            tokens_predicted=end.usage.generated,
            tokens_evaluated=end.usage.prompt,
            tokens_cached=end.usage.prompt + end.usage.generated,
            has_new_line="\n" in text,
            stop_type=_stop_type(end),
            stopping_word=end.stop or "",
            generation_settings=Settings(
                -1 if options.max_tokens is None else options.max_tokens, self.answer.context, streamed
            ),
            timings=timings_of(end.timings),
            completion_probabilities=UNSET if streamed or not self.chosen else self.chosen,
        )

    @property
    def _prompt(self) -> Any:
        return self.answer.prompts[self.choice // self.request.n]


def _stop_type(end: Finish) -> StopType:
    if end.stop is not None:
        return "word"
    return "limit" if end.reason == "length" else "eos"


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint(
        "POST", "/completion", complete, PromptRequest, CompletionFields | list[CompletionFields], Chunk
    ),
)
