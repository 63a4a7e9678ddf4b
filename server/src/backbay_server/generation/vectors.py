"""Vectors and scores of texts, computed beside the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from backbay_engine import LLM

from .generator import Generator
from .prompts import require_fitting

BATCH: Final = 32  # texts; between batches, a client that has left is noticed


class Vectors(NamedTuple):
    """A vector for each text, (texts, width), of length 1, and the tokens of all texts."""

    model: str
    rows: NDArray[np.float32]
    tokens: int


class Scores(NamedTuple):
    """A score for each text, the higher the better, and the tokens of all pairs."""

    model: str
    values: list[float]
    tokens: int


async def vectors_of(
    generator: Generator, model: str | None, texts: Sequence[str | Sequence[int]], *, cut: bool = False
) -> Vectors:
    """Embed texts. With `cut`, a text that is too long loses its end; otherwise it is an error."""
    with await generator.lease(model) as lease:
        require_fitting(lease.llm, texts)
        encoded = await generator.beside(_encoded, lease.llm, texts, cut)
        rows = [
            await generator.waiting(lease.llm.embed, encoded[begin : begin + BATCH])
            for begin in range(0, len(encoded), BATCH)
        ]
        return Vectors(lease.name, np.concatenate(rows), sum(map(len, encoded)))


async def scores_of(generator: Generator, model: str | None, query: str, texts: Sequence[str]) -> Scores:
    """Score texts by how well they answer a query."""
    with await generator.lease(model) as lease:
        require_fitting(lease.llm, query, texts)
        values: list[float] = []
        for begin in range(0, len(texts), BATCH):
            values += (
                await generator.waiting(lease.llm.rerank, query, texts[begin : begin + BATCH])
            ).tolist()
        tokens = await generator.beside(_pair_tokens, lease.llm, query, texts)
        return Scores(lease.name, values, tokens)


def _encoded(llm: LLM, texts: Sequence[str | Sequence[int]], cut: bool) -> list[list[int]]:
    if not cut:
        return [llm.encode(text) for text in texts]
    most = min(llm.context, llm.batch)
    ids = [llm.tokenizer.encode(text) if isinstance(text, str) else list(text) for text in texts]
    return [each[:most] for each in ids]


def _pair_tokens(llm: LLM, query: str, texts: Sequence[str]) -> int:
    """About the tokens of all pairs: those of the query count once for each text."""
    encode = llm.tokenizer.encode
    return len(texts) * len(encode(query)) + sum(len(encode(text, add_special=False)) for text in texts)
