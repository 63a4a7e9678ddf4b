"""Log-probabilities, as the APIs of OpenAI and Ollama give them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from backbay_engine import Sampled, Tokenizer


class TokenLogprob(Struct):
    """A token that might have been chosen. `bytes` are those of its text, which may be half a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenLogprob(TokenLogprob):
    """The token that was chosen, and the most likely ones."""

    top_logprobs: list[TokenLogprob]


def chosen_of(tokenizer: Tokenizer, sampled: Sequence[Sampled]) -> list[ChosenLogprob]:
    """Tokens with their texts."""
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


def _shown(tokenizer: Tokenizer, token: int, logprob: float) -> tuple[str, float, list[int]]:
    text = tokenizer.token_bytes(token, special=True)
    return text.decode("utf-8", "replace"), logprob, list(text)
