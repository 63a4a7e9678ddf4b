"""Timings of answers, in the form of llama.cpp's server."""

from __future__ import annotations

from msgspec import Struct

from backbay_engine import Timings as Measured


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


def timings_of(measured: Measured) -> Timings:
    """The engine's timings in the server's form."""
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
    )
