"""The gated delta rule: a linear attention whose state forgets, and replaces what it knows of a key."""

from __future__ import annotations

from backbay import Context, Tensor

from .chunks import Chunks, through_chunks

CHUNK = 64  # tokens of a chunk at most


def delta_rule(
    ctx: Context, state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs of the tokens of each sequence, and the states after them.

    For each head and sequence, the state S, (key, value), takes the tokens in order:

        S = S * exp(decay);  S += k (v - S^T k)^T * share;  y = S^T q

    state                (key, value, heads, sequences)
    q, k, v              (key or value, heads, tokens, sequences)
    decay, share         (heads, tokens, sequences)
    y                    (value, heads, tokens, sequences)

    One token is computed as written, several in chunks.
    """
    if q.dim(2) == 1:
        return recurrent_delta_rule(ctx, state, q, k, v, decay, share)
    return chunked_delta_rule(ctx, state, q, k, v, decay, share)


def recurrent_delta_rule(
    ctx: Context, state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule as it is written, for one token of each sequence."""
    heads, sequences = state.dim(2), state.dim(3)
    q, k, v = (t.contiguous(ctx, t.dim(0), 1, heads, sequences) for t in (q, k, v))
    decay, share = (t.contiguous(ctx, 1, 1, heads, sequences) for t in (decay, share))
    state = state.mul(ctx, decay.exp(ctx))
    change = v.sub(ctx, state.mulmat(ctx, k)).mul(ctx, share)  # (value, 1, heads, sequences)
    rows, columns = (t.reshape(ctx, 1, t.dim(0), heads, sequences) for t in (k, change))
    state = state.add(ctx, rows.mulmat(ctx, columns))
    y = state.mulmat(ctx, q)
    return y.reshape(ctx, y.dim(0), heads, 1, sequences), state


def chunked_delta_rule(
    ctx: Context, state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, share: Tensor
) -> tuple[Tensor, Tensor]:
    """The rule for chunks of tokens: a triangular system gives all changes of a chunk at once.

    With D[i,j] the decay from token j to token i, and S the state before the chunk, the changes U solve

        (I + strict_lower(D * share K K^T)) U = share (V - decay * K S)
    """
    chunks = Chunks.of(q, CHUNK)
    shape = (chunks.size, chunks.count, chunks.heads * chunks.sequences)
    q, k, v = (chunks.split(ctx, t) for t in (q, k, v))
    decay, share = (chunks.split(ctx, t.reshape(ctx, 1, *t.shape)) for t in (decay, share))
    since = decay.reshape(ctx, *shape).cumsum(ctx)  # the decay since the chunk's beginning
    of_row, of_column = since.reshape(ctx, 1, *shape), since.reshape(ctx, shape[0], 1, *shape[1:])

    def wide(t: Tensor, width: int) -> Tensor:
        """A number for each row, repeated: backends multiply tensors of equal shapes faster."""
        return t.repeat_4d(ctx, width, *shape)

    between = wide(of_row, shape[0]).sub(ctx, of_column)
    between = between.tri(ctx, "lower-diag").exp(ctx)
    decayed = of_row.exp(ctx)
    shared = k.mul(ctx, wide(share, k.dim(0)))
    system = k.mulmat(ctx, shared).mul(ctx, between).tri(ctx, "lower")
    sides = v.mul(ctx, wide(share, v.dim(0))).concat(
        ctx, shared.mul(ctx, wide(decayed.neg(ctx), k.dim(0))), 0
    )
    end = since.slice(ctx, 0, shape[0] - 1, shape[0]).contiguous(ctx, 1, 1, *shape[1:])
    left = of_column.neg(ctx).add(ctx, end).exp(ctx)  # the decay until the end
    return through_chunks(
        ctx,
        chunks,
        state,
        system.solve_tri(ctx, sides, unit_diagonal=True),
        seen=k.mulmat(ctx, q).mul(ctx, between).tri(ctx, "lower-diag"),
        queries=q.mul(ctx, wide(decayed, k.dim(0))),
        added=k.permute(ctx, 1, 0, 2, 3).contiguous(ctx).mul(ctx, left),
        kept=end.exp(ctx),
    )
