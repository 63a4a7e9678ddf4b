"""Vectors and scores of texts, computed beside the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from backbay_engine import LLM

from .generator import Generator
from .prompts import require_fitting

T = TypeVar("T")
BATCH: Final = 32  # texts; between batches, a client that has left is noticed


class TextNumbers(NamedTuple):
    """For each text a vector of length 1, (texts, width), or a score, (texts,); and the tokens of all texts."""

    model: str
    rows: NDArray[np.float32]
    tokens: int


async def vectors_of(
    generator: Generator, model: str | None, texts: Sequence[str | Sequence[int]], *, cut: bool = False
) -> TextNumbers:
    """Embed texts. With `cut`, a text that is too long loses its end; otherwise it is an error."""
    with await generator.lease(model) as lease:
        require_fitting(lease.llm, texts)
        encoded = await generator.beside(_encoded, lease.llm, texts, cut)
        rows = await _in_batches(generator, lease.llm.embed, encoded)
        return TextNumbers(lease.name, rows, sum(map(len, encoded)))


async def scores_of(generator: Generator, model: str | None, query: str, texts: Sequence[str]) -> TextNumbers:
    """Score texts by how well they answer a query: the higher the better."""
    with await generator.lease(model) as lease:
        require_fitting(lease.llm, query, texts)
        scores = await _in_batches(generator, partial(lease.llm.rerank, query), texts)
        return TextNumbers(lease.name, scores, await generator.beside(_pair_tokens, lease.llm, query, texts))


async def _in_batches(
    generator: Generator, compute: Callable[[Sequence[T]], NDArray[np.float32]], texts: Sequence[T]
) -> NDArray[np.float32]:
    batches = [texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH)]
    return np.concatenate([await generator.waiting(compute, batch) for batch in batches])


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
