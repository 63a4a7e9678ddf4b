"""The delta rule of RWKV 7: every channel of the key has a decay, and what is removed has a vector of its own."""

from __future__ import annotations

from typing import NamedTuple

from backbay import Context, Tensor

from .chunks import Chunks, through_chunks

CHUNK = 32  # tokens of a chunk at most: exp of minus the decays of a chunk must stay a number


class Token(NamedTuple):
    """The vectors of the tokens, (key or value, heads, tokens, sequences) each."""

    query: Tensor
    decay: Tensor  # in (-1, 0]
    key: Tensor
    value: Tensor
    removed: Tensor
    replaced: Tensor


def low_rank_rule(ctx: Context, state: Tensor, token: Token) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens of each sequence, (value, heads, tokens, sequences), and the states after them.

    For each head and sequence, the state S, (key, value), takes the tokens in order:

        S = diag(exp(decay)) S + replaced (S^T removed)^T + key value^T;  y = S^T query

    One token is computed as written, several in chunks.
    """
    if token.query.dim(2) == 1:
        return recurrent_low_rank_rule(ctx, state, token)
    return chunked_low_rank_rule(ctx, state, token)


def recurrent_low_rank_rule(ctx: Context, state: Tensor, token: Token) -> tuple[Tensor, Tensor]:
    """The rule as it is written, for one token of each sequence."""
    heads, sequences = state.dim(2), state.dim(3)
    each = Token(*(t.contiguous(ctx, t.dim(0), 1, heads, sequences) for t in token))
    known = state.mulmat(ctx, each.removed)  # (value, 1, heads, sequences)

    def pair(a: Tensor, b: Tensor) -> Tensor:  # (2, n, heads, sequences)
        a, b = (t.reshape(ctx, 1, t.dim(0), heads, sequences) for t in (a, b))
        return a.concat(ctx, b, 0)

    changes = pair(each.replaced, each.key).mulmat(ctx, pair(known, each.value))
    state = state.mul(ctx, each.decay.exp(ctx)).add(ctx, changes)
    y = state.mulmat(ctx, each.query)
    return y.reshape(ctx, y.dim(0), heads, 1, sequences), state


def chunked_low_rank_rule(ctx: Context, state: Tensor, token: Token) -> tuple[Tensor, Tensor]:
    """The rule for chunks of tokens: a triangular system gives all that a chunk removes at once.

    Removals U and values V are changes alike. With every vector brought to the chunk's beginning by its decay, and S the
    state before the chunk, U solves

        (I - strict_lower(removed replaced^T)) U = removed S + strict_lower(removed key^T) V
    """
    chunks = Chunks.of(token.query, CHUNK)
    query, decay, key, value, removed, replaced = (chunks.split(ctx, t) for t in token)
    turned = decay.permute(ctx, 1, 0, 2, 3).contiguous(ctx).cumsum(ctx)  # (size, key, ..)
    since = turned.permute(ctx, 1, 0, 2, 3).contiguous(ctx)  # the decay since the chunk's beginning
    query, removed = query.mul(ctx, since.exp(ctx)), removed.mul(ctx, since.sub(ctx, decay).exp(ctx))
    grown = since.neg(ctx).exp(ctx)
    replaced, key = replaced.mul(ctx, grown), key.mul(ctx, grown)
    values = value.permute(ctx, 1, 0, 2, 3).contiguous(ctx)  # (size, value, ..)
    system = replaced.mulmat(ctx, removed).neg(ctx).tri(ctx, "lower")
    given = values.mulmat(ctx, key.mulmat(ctx, removed).tri(ctx, "lower"))
    solved = system.solve_tri(ctx, given.concat(ctx, removed, 0), unit_diagonal=True)
    known = value.pad(ctx, removed.dim(0))  # values do not depend on the state
    end = since.slice(ctx, 1, chunks.size - 1, chunks.size).exp(ctx)  # (key, 1, ..)
    both = replaced.concat(ctx, key, 1)  # (key, 2 size, ..)
    seen = (t.mulmat(ctx, query).tri(ctx, "lower-diag") for t in (replaced, key))
    return through_chunks(
        ctx,
        chunks,
        state,
        solved.concat(ctx, known, 1),
        seen=next(seen).concat(ctx, next(seen), 0),
        queries=query,
        added=both.mul(ctx, end).permute(ctx, 1, 0, 2, 3).contiguous(ctx),
        kept=end.contiguous(ctx),
    )
