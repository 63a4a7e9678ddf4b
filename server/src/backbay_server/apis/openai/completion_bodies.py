"""Completions of plain prompts: the bodies of requests and answers."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ..fields import Count, refused, taken
from .sampling import GenerationFields
from .usage import FINGERPRINT, Usage

Reason: TypeAlias = Literal["stop", "length"]


class CompletionRequest(GenerationFields, kw_only=True):
    """Prompts to continue."""

    prompt: Annotated[str | list[str | int | list[int]], taken("a text, token ids, or several of either")]
    max_tokens: Annotated[Count | None, taken("the most tokens of an answer; by default 16")] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        taken("report log-probabilities, and this many of the most likely tokens with each token"),
    ] = None
    echo: Annotated[bool | None, taken("whether the answer begins with the prompt")] = None
    suffix: Annotated[
        str | None, taken("what follows the answer, for models with tokens to fill in the middle")
    ] = None
    best_of: Annotated[int | None, refused("all answers are given; use n", (1,))] = None


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
