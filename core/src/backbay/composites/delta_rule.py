"""The delta rule, composed: one token as it is written, several in chunks, whose changes a triangular system gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, final

from ..trace.context import Context
from ..trace.tensor import Tensor

CHUNK = 16  # tokens at most: decays of each channel take memory with the square of it


@final
@dataclass(frozen=True)
class TokenChunks:
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


class DeltaRuleOperands(NamedTuple):
    """The rule with one formula for both of its forms; vectors are (key or value, heads, tokens, sequences).

    S = diag(exp(decay)) S - put (S^T read)^T + key value^T;  y = S^T query
    """

    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor
    read: Tensor
    put: Tensor
    reads_decayed: bool  # whether a token decays the state before it reads


def one_token(ctx: Context, state: Tensor, token: DeltaRuleOperands) -> tuple[Tensor, Tensor]:
    """The output and the states after one token of each sequence."""
    heads, sequences = state.dim(2), state.dim(3)
    vectors = [t.contiguous(ctx, t.dim(0), 1, heads, sequences) for t in token[:-1]]
    query, key, value, decay, read, put = vectors
    kept = state.mul(ctx, decay.exp(ctx))
    known = (kept if token.reads_decayed else state).mulmat(ctx, read)  # (value, 1, heads, sequences)

    def pair(a: Tensor, b: Tensor) -> Tensor:  # (2, n, heads, sequences)
        a, b = (t.reshape(ctx, 1, t.dim(0), heads, sequences) for t in (a, b))
        return a.concat(ctx, b, 0)

    state = kept.add(ctx, pair(put.neg(ctx), key).mulmat(ctx, pair(known, value)))
    return state.mulmat(ctx, query), state


def in_chunks(ctx: Context, state: Tensor, tokens: DeltaRuleOperands) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens of each sequence, (value, heads, tokens, sequences), and the states after them.

    What the tokens of a chunk know, U, solves a triangular system. With S the state before the chunk, and every product
    of vectors weighted by the decay that lies between them:

        (I + strict_lower(read put^T)) U = read S + strict_lower(read key^T) V
        y = query S + lower(query key^T) V - lower(query put^T) U
    """
    chunks = TokenChunks.of(tokens.query, CHUNK)
    query, key, value, decay, read, put = (chunks.split(ctx, t) for t in tokens[:-1])
    put, size = put.neg(ctx), chunks.size
    since = _turned(ctx, _turned(ctx, decay).cumsum(ctx))  # the decay since the chunk's beginning
    between = _between(ctx, decay)
    read_since, read_between = since, between
    if not tokens.reads_decayed:  # a token reads what was there before its decay
        read_since, read_between = _delayed(ctx, since, 1), _delayed(ctx, between, 2)

    def products(row: Tensor, column: Tensor, decays: Tensor) -> Tensor:
        return _products(ctx, row, column, decays.exp(ctx))

    given = _turned(ctx, value).mulmat(ctx, products(read, key, read_between).tri(ctx, "lower"))
    decayed = read.mul(ctx, read_since.exp(ctx))
    system = products(read, put, read_between).neg(ctx).tri(ctx, "lower")
    solved = system.solve_tri(ctx, given.concat(ctx, decayed, 0), unit_diagonal=True)
    seen = [products(query, column, between).tri(ctx, "lower-diag") for column in (put, key)]
    left = between.slice(ctx, 2, size - 1, size).contiguous(ctx, *since.shape).exp(ctx)  # until the end
    solved = solved.concat(ctx, value.pad(ctx, read.dim(0)), 1)  # values do not depend on the state
    added = _turned(ctx, put.mul(ctx, left).concat(ctx, key.mul(ctx, left), 1))
    kept = since.slice(ctx, 1, size - 1, size).contiguous(ctx).exp(ctx)
    parts = seen[0].concat(ctx, seen[1], 0), query.mul(ctx, since.exp(ctx)), added, kept
    return _through_chunks(ctx, chunks, state, solved, parts)


def _turned(ctx: Context, x: Tensor) -> Tensor:
    return x.permute(ctx, 1, 0, 2, 3).contiguous(ctx)


def _between(ctx: Context, decay: Tensor) -> Tensor:
    """The decays from each token to each later one, (key or 1, tokens, later tokens, all chunks); 0 to earlier ones.

    Each is a sum: a difference of sums since the beginning would lose digits.
    """
    key, size, every = decay.dim(0), decay.dim(1), decay.dim(2) * decay.dim(3)
    later = _turned(ctx, decay).reshape(ctx, size, 1, key, every).repeat_4d(ctx, size, size, key, every)
    return later.tri(ctx, "upper").cumsum(ctx).permute(ctx, 2, 1, 0, 3).contiguous(ctx)


def _delayed(ctx: Context, x: Tensor, dim: int) -> Tensor:
    """The elements of the token before each; 0 for the first."""
    amounts = [0] * 8
    amounts[2 * dim] = 1
    return x.slice(ctx, dim, 0, x.dim(dim) - 1).pad_ext(ctx, *amounts)


def _products(ctx: Context, row: Tensor, column: Tensor, decays: Tensor) -> Tensor:
    """The products of each row with the columns of all tokens, (columns, rows, count, heads * sequences)."""
    key, n, count, heads = row.shape
    if decays.dim(0) == 1:
        return column.mulmat(ctx, row).mul(ctx, decays.reshape(ctx, n, n, count, heads))
    row, column = row.reshape(ctx, key, 1, n, -1), column.reshape(ctx, key, n, 1, -1)
    return decays.mul(ctx, column).mulmat(ctx, row).reshape(ctx, n, n, count, heads)


def _through_chunks(
    ctx: Context, chunks: TokenChunks, state: Tensor, solved: Tensor, parts: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The outputs, (value, heads, tokens, sequences), and the state after all chunks, (key, value, heads, sequences).

    The changes of a chunk are affine in the state before it: `solved` holds the constant part, (value, changes), above
    the factor of the state, (key, changes). For each chunk:

        U = constant + factor S;  y = S^T queries + U seen;  S = S * kept + added U

    `parts` are, of each chunk, seen, (changes, size); queries, (key, size); added, (changes, key); kept, (key or 1, 1).
    """
    key, value, everything = state.dim(0), state.dim(1), chunks.heads * chunks.sequences
    constant, factor = solved.chunk_sections(ctx, 0, value, key)
    constant, factor = _turned(ctx, constant), factor.contiguous(ctx)
    state = state.contiguous(ctx, key, value, 1, everything)
    outputs = []
    for n in range(chunks.count):
        own = (t.slice(ctx, 2, n, n + 1) for t in (constant, factor, *parts))
        fixed, by_state, seen, queries, added, kept = own
        changes = fixed.add(ctx, by_state.mulmat(ctx, state))  # (changes, value, 1, heads * sequences)
        outputs.append(state.mulmat(ctx, queries).add(ctx, changes.mulmat(ctx, seen)))
        state = state.mul(ctx, kept).add(ctx, added.mulmat(ctx, changes))
    return chunks.join(ctx, outputs), state
