"""Attention over keys and values that are given: those of an encoder's rows, of pictures, or of a whole text."""

from __future__ import annotations

from typing import final

from backbay import BackbayError, Context, Tensor

from ...cache.attention.media import BoundMediaCrossAttentionCache
from ...cache.contract import AttentionOperands
from ...cache.layered import BoundLayeredCache
from ..batch import Batch
from .linear import Linear
from .norm import RMSNorm
from .shape import Shape
from .weights import Weights


@final
class ContextAttention:
    """Attention of tokens over keys and values that are given; nothing knows positions.

    names   of the matrices, with a place for each letter of q, k, v and o
    norms   of the norms of queries and keys, of each head; empty: they have none
    scale   of the scores
    """

    def __init__(
        self, weights: Weights, names: str, shape: Shape, *, norms: str = "", scale: float | None = None
    ) -> None:
        self.shape, self.scale = shape, shape.head**-0.5 if scale is None else scale
        inner, given = shape.head * shape.heads, shape.head * shape.kv_heads
        self.query, self.key, self.value = (
            Linear(weights, names.format(letter), shape.width, width)
            for letter, width in (("q", inner), ("k", given), ("v", given))
        )
        self.output = Linear(weights, names.format("o"), inner, shape.width)
        self.query_norm, self.key_norm = (
            RMSNorm(weights, norms.format(letter), shape.head) if norms else None for letter in "qk"
        )

    def pairs(self, ctx: Context, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of rows, (head, kv_heads, rows)."""
        heads = self.shape.head, self.shape.kv_heads, rows.dim(1)
        k, v = (linear(ctx, rows).reshape(ctx, *heads) for linear in (self.key, self.value))
        return k if self.key_norm is None else self.key_norm(ctx, k), v

    def __call__(self, ctx: Context, x: Tensor, seen: AttentionOperands) -> Tensor:
        """(width, tokens)"""
        q = self.query(ctx, x).reshape(ctx, self.shape.head, self.shape.heads, x.dim(1))
        q = q if self.query_norm is None else self.query_norm(ctx, q)
        return self.output(ctx, seen.attend(ctx, q, self.scale).reshape(ctx, -1, x.dim(1)))


def context_of(batch: Batch) -> BoundMediaCrossAttentionCache:
    """What cross attention sees in a step: the rows of pictures or sounds. It is the last of the model's caches."""
    bound = batch.cache.bounds[-1] if isinstance(batch.cache, BoundLayeredCache) else None
    if not isinstance(bound, BoundMediaCrossAttentionCache):
        raise BackbayError(
            "this model attends to pictures or sounds: its steps need the cache that new_cache() gives"
        )
    return bound
