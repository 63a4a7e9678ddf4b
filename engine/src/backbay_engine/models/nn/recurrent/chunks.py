"""Chunks of tokens, for rules whose state changes with every token: all of a chunk is computed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, final

from backbay import Context, Tensor


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


def through_chunks(
    ctx: Context,
    chunks: Chunks,
    state: Tensor,
    solved: Tensor,
    *,
    seen: Tensor,
    queries: Tensor,
    added: Tensor,
    kept: Tensor,
) -> tuple[Tensor, Tensor]:
    """The outputs, (value, heads, tokens, sequences), and the state after all chunks, (key, value, heads, sequences).

    The changes of a chunk are affine in the state before it: `solved` holds the constant part, (value, changes), above
    the factor of the state, (key, changes). For each chunk:

        U = constant + factor S;  y = S^T queries + U seen;  S = S * kept + added U

    seen       (changes, size) of each chunk     queries    (key, size)
    added      (changes, key)                    kept       (key or 1, 1)
    """
    key, value, everything = state.dim(0), state.dim(1), chunks.heads * chunks.sequences
    constant, factor = solved.chunk_sections(ctx, 0, value, key)
    constant, factor = constant.permute(ctx, 1, 0, 2, 3).contiguous(ctx), factor.contiguous(ctx)
    state = state.contiguous(ctx, key, value, 1, everything)
    parts = []
    for n in range(chunks.count):
        own = (t.slice(ctx, 2, n, n + 1) for t in (constant, factor, seen, queries, added, kept))
        fixed, by_state, weights, asked, additions, decay = own
        changes = fixed.add(ctx, by_state.mulmat(ctx, state))  # (changes, value, 1, heads * sequences)
        parts.append(state.mulmat(ctx, asked).add(ctx, changes.mulmat(ctx, weights)))
        state = state.mul(ctx, decay).add(ctx, additions.mulmat(ctx, changes))
    return chunks.join(ctx, parts), state.reshape(ctx, key, value, chunks.heads, chunks.sequences)
