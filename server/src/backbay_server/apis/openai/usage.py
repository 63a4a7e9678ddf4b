"""The usage of a request: its tokens, as OpenAI counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from ...generation import Finish
from ..timings import Timings, timings_of

FINGERPRINT: Final = f"backbay-{metadata.version('backbay-server')}"


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


def only_timings(ends: Sequence[Finish], n: int) -> Timings | UnsetType:
    """Where the time went, if there is one answer; those of several overlap."""
    return timings_of(ends[0].timings) if len(ends) == n == 1 else UNSET
