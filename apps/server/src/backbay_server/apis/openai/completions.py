"""Completions of plain prompts."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from backbay_engine import Sampled, Tokenizer

from ...errors import InvalidRequestError
from ...generation import AnswerDelta, AnswerEnd
from ...generation.requests import InfillGap, Prompt, Request
from ...transport.answers import JsonResponse, StreamResponse, encode, event_stream, sse
from ..endpoint import Endpoint, EndpointCall
from ..fields import MOST_TEXTS, Count, Suffix, Texts, TopLogprobs, refused, taken
from ..measures import token_text
from .answers import FINGERPRINT, Usage, usage_of
from .chat import DONE
from .generation_fields import GenerationFields, options_of, require_choices, wants_usage

Reason: TypeAlias = Literal["stop", "length"]
MOST_TOKENS: Final = 16  # OpenAI's default


class CompletionRequest(GenerationFields, kw_only=True):
    """Prompts to continue."""

    prompt: Texts
    max_tokens: Annotated[Count | None, taken("the most tokens of an answer; by default 16")] = None
    logprobs: TopLogprobs = None
    echo: Annotated[bool | None, taken("whether the answer begins with the prompt")] = None
    suffix: Suffix = None
    best_of: Annotated[int | None, refused("all answers are given; use n", (0, 1))] = None


class CompletionLogprobs(Struct):
    """The log-probabilities of an answer's tokens. `text_offset` is where each token begins in the text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct):
    """One of the answers, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Reason | None = None


class TextCompletion(Struct):
    """A whole answer, or a piece of it."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str = FINGERPRINT


async def complete(call: EndpointCall, body: CompletionRequest) -> JsonResponse | StreamResponse:
    """Continue prompts."""
    prompts = prompts_of(body.prompt)
    most = body.n_predict if body.max_tokens is None else body.max_tokens
    most = MOST_TOKENS if most is None else None if most == -1 else most
    options, n = options_of(body, most, body.logprobs), body.n or 1
    require_choices(call, len(prompts) * n)
    asked: list[Prompt] = [*prompts]
    if body.suffix:
        if not all(isinstance(prompt, str) for prompt in prompts):
            raise InvalidRequestError("a prompt with a suffix is a text", param="prompt")
        asked = [InfillGap(str(prompt), body.suffix) for prompt in prompts]
    request = Request(body.model, asked, options, n, echo=bool(body.echo))
    if body.stream:
        return event_stream(_chunks(call, request, usage=wants_usage(body)))
    name, created = f"cmpl-{call.id}", int(time.time())
    async with call.services.generator.answering(request) as answer:
        whole = await answer.whole()
        choices = [_choice(*each, answer.tokenizer) for each in whole]
        usage = usage_of([end for _, end in whole], n)
        return JsonResponse(TextCompletion(name, created, answer.model, choices, usage=usage))


def prompts_of(given: str | list[str | int | list[int]], name: str = "prompt") -> list[str | Sequence[int]]:
    """The prompts: one, or several."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequestError(f"{name} is empty", param=name)
    if all(isinstance(each, int) for each in given):
        return [given]  # type: ignore[list-item]  # the ids of one prompt
    if any(isinstance(each, int) for each in given):
        raise InvalidRequestError(f"{name} must be a text, token ids, or several of either", param=name)
    return given  # type: ignore[return-value]  # texts, or lists of ids


def texts_of(given: str | list[str | int | list[int]], name: str) -> list[str | Sequence[int]]:
    """The texts to embed: no more than one request may have."""
    texts = prompts_of(given, name)
    if len(texts) > MOST_TEXTS:
        raise InvalidRequestError(
            f"{name} has {len(texts)} texts, at most {MOST_TEXTS} are taken", param=name
        )
    return texts


async def _chunks(call: EndpointCall, request: Request, *, usage: bool) -> AsyncGenerator[bytes, None]:
    name, created, ends = f"cmpl-{call.id}", int(time.time()), list[AnswerEnd]()
    async with call.services.generator.answering(request) as answer:

        def chunk(choices: list[CompletionChoice], counted: Usage | None = None) -> bytes:
            shown = counted if usage else UNSET
            return sse(encode(TextCompletion(name, created, answer.model, choices, usage=shown)))

        tokens = [_Tokens(answer.tokenizer) for _ in range(request.choices)]
        async for event in answer:
            if isinstance(event, AnswerEnd):
                ends.append(event)
                yield chunk([CompletionChoice(event.choice, "", finish_reason=_reason(event))])
            else:
                logprobs = None if event.logprobs is None else tokens[event.choice].shown(event.logprobs)
                yield chunk([CompletionChoice(event.choice, event.text, logprobs)])
        if usage:
            yield chunk([], usage_of(ends, request.n))
    yield DONE


def _choice(deltas: Sequence[AnswerDelta], end: AnswerEnd, tokenizer: Tokenizer) -> CompletionChoice:
    sampled = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    logprobs = _Tokens(tokenizer).shown([each for some in sampled for each in some]) if sampled else None
    return CompletionChoice(end.choice, "".join(delta.text for delta in deltas), logprobs, _reason(end))


def _reason(end: AnswerEnd) -> Reason:
    return "length" if end.reason == "length" else "stop"


class _Tokens:
    """The tokens of one of the answers, as they come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._text, self._offset = tokenizer, tokenizer.stream(continues=True), 0

    def shown(self, sampled: Sequence[Sampled]) -> CompletionLogprobs:
        """Tokens with their log-probabilities, and the places of their texts in the answer's text."""
        found = CompletionLogprobs([], [], [], [])
        for each in sampled:
            text = token_text(self._tokenizer, each.token)
            top = {token_text(self._tokenizer, top.token): top.logprob for top in each.top}
            found.tokens.append(text)
            found.token_logprobs.append(each.logprob)
            found.top_logprobs.append(None if each.logprob is None else {text: each.logprob, **top})
            found.text_offset.append(self._offset)
            # control tokens and half characters show nothing
            self._offset += len(self._text.push(each.token))
        return found


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/completions", complete, CompletionRequest, TextCompletion, TextCompletion),
)
