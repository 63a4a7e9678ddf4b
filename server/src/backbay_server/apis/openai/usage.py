"""The usage of a request: its tokens, as OpenAI counts them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ...generation import Finish


class PromptDetails(Struct):
    """Of the prompt's tokens, those that were in the cache."""

    cached_tokens: int = 0


class Usage(Struct):
    """Tokens of the prompt and of all answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(ends: Iterable[Finish], n: int) -> Usage:
    """The usage of all choices: each prompt counts once, however many answers it has."""
    prompt = cached = generated = 0
    for end in ends:
        generated += end.usage.generated
        if end.choice % n == 0:
            prompt += end.usage.prompt
            cached += end.usage.cached
    return Usage(prompt, generated, prompt + generated, PromptDetails(cached))
