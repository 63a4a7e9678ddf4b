"""Chunks of tokens, for rules whose state changes with every token: all of a chunk is computed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from ..trace.context import Context
from ..trace.tensor import Tensor


@final
@dataclass(frozen=True)
class Chunks:
    """Equally long chunks of the tokens of each sequence; the last one is padded with zeros."""

    size: int
    count: int
    tokens: int  # of each sequence
    heads: int
    sequences: int

    @classmethod
    def of(cls, x: Tensor, most: int) -> Self:
        """The chunks, of up to `most` tokens, of x, (n, heads, tokens, sequences)."""
        heads, tokens, sequences = (x.dim(n) for n in (1, 2, 3))
        count = -(-tokens // most)
        return cls(-(-tokens // count), count, tokens, heads, sequences)

    def split(self, ctx: Context, x: Tensor) -> Tensor:
        """(n, heads, tokens, sequences) to (n, size, count, heads * sequences)"""
        x = x.permute(ctx, 0, 2, 1, 3).contiguous(ctx)
        missing = self.size * self.count - self.tokens
        x = x.pad(ctx, 0, missing) if missing else x
        return x.reshape(ctx, x.dim(0), self.size, self.count, self.heads * self.sequences)

    def join(self, ctx: Context, parts: list[Tensor]) -> Tensor:
        """Chunks, (n, size, 1, heads * sequences), to (n, heads, tokens, sequences)"""
        n = parts[0].dim(0)
        x = parts[0].stack(ctx, 2, *parts[1:]) if len(parts) > 1 else parts[0]
        x = x.reshape(ctx, n, self.size * self.count, self.heads, self.sequences)
        return x.slice(ctx, 1, 0, self.tokens).permute(ctx, 0, 2, 1, 3).contiguous(ctx)
