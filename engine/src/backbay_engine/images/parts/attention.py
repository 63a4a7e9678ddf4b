"""Attention among the positions of pictures, in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from backbay import Context, Tensor

Triple: TypeAlias = tuple[Tensor, Tensor, Tensor]

SCORES = 128 << 20  # bytes of scores at a time; more queries are taken one tile after the other
LEAST = 64  # queries of a tile
TOGETHER = 512  # positions; groups up to this size are attended together


@dataclass(frozen=True)
class Groups:
    """Consecutive groups of positions, all of one size; a position sees its group alone."""

    size: int
    count: int


def attend(ctx: Context, q: Tensor, k: Tensor, v: Tensor, groups: Sequence[Groups], scale: float) -> Tensor:
    """Attention within groups, which cover all positions in their order; (head, heads, positions) of each."""
    found, start = [], 0
    for each in groups:
        end = start + each.size * each.count
        part = sliced(ctx, (q, k, v), 2, start, end) if end - start < q.dim(2) else (q, k, v)
        found.append(_within(ctx, *part, each, scale))
        start = end
    return joined(ctx, found, 2)


def _within(ctx: Context, q: Tensor, k: Tensor, v: Tensor, groups: Groups, scale: float) -> Tensor:
    if groups.count == 1:
        return tiled(ctx, q, k, v, scale)
    if groups.size > TOGETHER:
        return attend(ctx, q, k, v, [Groups(groups.size, 1)] * groups.count, scale)
    head, heads, positions = q.shape
    q, k, v = (t.contiguous(ctx).reshape(ctx, head, heads, groups.size, groups.count) for t in (q, k, v))
    each = 4 * heads * groups.size**2
    found = []
    for low, high in _ranges(groups.count, max(1, SCORES // each)):
        part = (q, k, v) if high - low == groups.count else sliced(ctx, (q, k, v), 3, low, high)
        found.append(part[0].scaled_dot_product_attention(ctx, part[1], part[2], scale=scale))
    return joined(ctx, found, 3).reshape(ctx, head, heads, positions)


def sliced(ctx: Context, parts: Triple, dim: int, low: int, high: int) -> Triple:
    """The same range of queries, keys and values."""
    q, k, v = (each.slice(ctx, dim, low, high, 1) for each in parts)
    return q, k, v


def tiled(ctx: Context, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """All queries see all keys; tiles of queries, so that no backend holds all scores of thousands of positions."""
    each = 4 * q.dim(1) * k.dim(2)
    found = []
    for low, high in _ranges(q.dim(2), max(LEAST, SCORES // each)):
        part = q if high - low == q.dim(2) else q.slice(ctx, 2, low, high, 1)
        found.append(part.scaled_dot_product_attention(ctx, k, v, scale=scale))
    return joined(ctx, found, 2)


def joined(ctx: Context, parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenated in pairs, so that no part is copied more often than the logarithm of their number."""
    while len(parts) > 1:
        pairs = [parts[n : n + 2] for n in range(0, len(parts), 2)]
        parts = [pair[0] if len(pair) == 1 else pair[0].concat(ctx, pair[1], dim) for pair in pairs]
    return parts[0]


def _ranges(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of nearly equal length, of at most `most`, that cover `count`."""
    pieces = -(-count // most)
    for n in range(pieces):
        yield count * n // pieces, count * (n + 1) // pieces
