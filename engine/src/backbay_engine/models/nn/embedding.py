"""Embeddings: ids to vectors."""

from __future__ import annotations

from typing import final

from backbay import Context, Tensor

from .weights import Weights


@final
class Embedding:
    """A table with a vector for each id."""

    def __init__(self, weights: Weights, name: str, width: int, count: int | None = None) -> None:
        self.weight = weights.need(f"{name}.weight", width, count)

    def __call__(self, ctx: Context, ids: Tensor) -> Tensor:
        return self.weight.rows(ctx, ids)
