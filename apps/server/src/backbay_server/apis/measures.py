"""Log-probabilities and timings of answers, as the APIs of OpenAI, Ollama and llama.cpp give them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from backbay_engine import Sampled, Tokenizer
from backbay_engine import Timings as Measured


class TokenLogprob(Struct):
    """A token that might have been chosen. `bytes` are those of its text, which may be half a character."""

    token: str
    logprob: float
    bytes: list[int]
    id: int


class ChosenLogprob(TokenLogprob):
    """The token that was chosen, and the most likely ones."""

    top_logprobs: list[TokenLogprob]


def chosen_of(tokenizer: Tokenizer, sampled: Sequence[Sampled]) -> list[ChosenLogprob]:
    return [
        ChosenLogprob(
            *_shown(tokenizer, each.token, each.logprob or 0.0),
            [TokenLogprob(*_shown(tokenizer, top.token, top.logprob)) for top in each.top],
        )
        for each in sampled
    ]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token; half characters are replaced."""
    return tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")


def _shown(tokenizer: Tokenizer, token: int, logprob: float) -> tuple[str, float, list[int], int]:
    return token_text(tokenizer, token), logprob, list(tokenizer.token_bytes(token, special=True)), token


class Timings(Struct):
    """Where the time of an answer went: milliseconds, and tokens per second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET  # guessed tokens, if there were any
    draft_n_accepted: int | UnsetType = UNSET


def timings_of(measured: Measured) -> Timings:
    """The engine's timings in the form of llama.cpp's server."""
    computed = measured.prompt_tokens - measured.reused_tokens
    return Timings(
        cache_n=measured.reused_tokens,
        prompt_n=computed,
        prompt_ms=1e3 * measured.prompt,
        prompt_per_token_ms=1e3 * measured.prompt / max(1, computed),
        prompt_per_second=measured.prompt_rate,
        predicted_n=measured.tokens,
        predicted_ms=1e3 * measured.generation,
        predicted_per_token_ms=1e3 * measured.generation / max(1, measured.tokens - 1),
        predicted_per_second=measured.rate,
        draft_n=measured.guessed_tokens or UNSET,
        draft_n_accepted=measured.accepted_tokens if measured.guessed_tokens else UNSET,
    )
