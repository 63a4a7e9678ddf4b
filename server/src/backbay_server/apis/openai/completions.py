"""Completions of plain prompts."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from msgspec import UNSET

from backbay_engine import Sampled, Text, Tokenizer

from ...errors import InvalidRequestError
from ...generation import Answer, Delta, Finish, Gap, Request
from ...transport.answers import Json, Stream, encode, event_stream, sse
from ..endpoint import Call, Endpoint
from ..fields import MOST_TEXTS
from ..logprobs import token_text
from .chat import DONE
from .completion_bodies import CompletionChoice, CompletionLogprobs, CompletionRequest, Reason, TextCompletion
from .sampling import options_of, require_choices, wants_usage
from .usage import Usage, usage_of

MOST_TOKENS: Final = 16  # OpenAI's default


async def complete(call: Call, body: CompletionRequest) -> Json | Stream:
    """Continue prompts."""
    prompts = prompts_of(body.prompt)
    most = MOST_TOKENS if body.max_tokens is None else body.max_tokens
    options, n = options_of(body, most, body.logprobs), body.n or 1
    require_choices(call, len(prompts) * n)
    asked = [_gap(prompt, body.suffix) for prompt in prompts] if body.suffix else prompts
    request = Request(body.model, asked, options, n, echo=bool(body.echo))
    name = f"cmpl-{call.id}"
    if body.stream:
        return event_stream(_chunks(call, request, name, usage=wants_usage(body)))
    async with call.services.generator.answering(request) as answer:
        return Json(await _completion(answer, request, name))


def prompts_of(given: str | list[str | int | list[int]], name: str = "prompt") -> list[str | Sequence[int]]:
    """The prompts: one, or several of one kind."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidRequestError(f"{name} is empty", param=name)
    if all(isinstance(each, int) for each in given):
        return [given]  # type: ignore[list-item]  # the ids of one prompt
    if len({type(each) for each in given}) > 1:
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


def _gap(prompt: str | Sequence[int], suffix: str) -> Gap:
    if not isinstance(prompt, str):
        raise InvalidRequestError("a prompt with a suffix is a text", param="prompt")
    return Gap(prompt, suffix)


async def _completion(answer: Answer, request: Request, name: str) -> TextCompletion:
    created, ends = int(time.time()), list[Finish]()
    grown = [_Grown(answer.tokenizer) for _ in range(request.choices)]
    async for event in answer:
        if isinstance(event, Finish):
            ends.append(event)
        else:
            grown[event.choice].add(event)
    ends.sort(key=lambda end: end.choice)
    choices = [grown[end.choice].choice(end) for end in ends]
    return TextCompletion(name, created, answer.model, choices, usage=usage_of(ends, request.n))


async def _chunks(call: Call, request: Request, name: str, *, usage: bool) -> AsyncGenerator[bytes, None]:
    created, ends = int(time.time()), list[Finish]()
    async with call.services.generator.answering(request) as answer:

        def chunk(choices: list[CompletionChoice], counted: Usage | None = None) -> bytes:
            return sse(
                encode(
                    TextCompletion(name, created, answer.model, choices, usage=counted if usage else UNSET)
                )
            )

        tokens = [_Tokens(answer.tokenizer) for _ in range(request.choices)]
        async for event in answer:
            if isinstance(event, Finish):
                ends.append(event)
                yield chunk([CompletionChoice(event.choice, "", finish_reason=_reason(event))])
            else:
                logprobs = None if event.logprobs is None else tokens[event.choice].shown(event.logprobs)
                yield chunk([CompletionChoice(event.choice, _text(event), logprobs)])
        if usage:
            yield chunk([], usage_of(ends, request.n))
    yield DONE


class _Grown:
    """One of the answers, as far as it has come."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._texts, self._tokens = list[str](), _Tokens(tokenizer)
        self._logprobs: CompletionLogprobs | None = None

    def add(self, delta: Delta) -> None:
        self._texts.append(_text(delta))
        if delta.logprobs is None:
            return
        more = self._tokens.shown(delta.logprobs)
        if self._logprobs is None:
            self._logprobs = more
            return
        for field in CompletionLogprobs.__struct_fields__:
            getattr(self._logprobs, field).extend(getattr(more, field))

    def choice(self, end: Finish) -> CompletionChoice:
        return CompletionChoice(end.choice, "".join(self._texts), self._logprobs, _reason(end))


def _text(delta: Delta) -> str:
    return "".join(piece.text for piece in delta.pieces if isinstance(piece, Text))


def _reason(end: Finish) -> Reason:
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
            self._offset += len(
                self._text.push(each.token)
            )  # control tokens and half characters show nothing
        return found


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/completions", complete, CompletionRequest, TextCompletion, TextCompletion),
)
