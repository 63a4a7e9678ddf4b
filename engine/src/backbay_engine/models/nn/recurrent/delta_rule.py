"""The gated delta rule: a linear attention whose state forgets, and replaces what it knows of a key."""

from __future__ import annotations

from backbay import Context, Tensor

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

    One token is computed as written, several in chunks: within a chunk a triangular system gives all its changes at
    once, so that the time does not grow with the number of steps through the state.
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
    """The rule for chunks of tokens, equally many in each; a chunk is padded with tokens that change nothing."""
    size, value = q.dim(0), v.dim(0)
    heads, tokens, sequences = (decay.dim(n) for n in range(3))
    count = -(-tokens // CHUNK)
    chunk = -(-tokens // count)
    missing, all_heads = count * chunk - tokens, heads * sequences

    def in_chunks(t: Tensor) -> Tensor:  # (n, heads, tokens, sequences) to (n, chunk, chunks, all heads)
        t = t.permute(ctx, 0, 2, 1, 3).contiguous(ctx)
        return t.pad(ctx, 0, missing).reshape(ctx, t.dim(0), chunk, count, all_heads)

    q, k, v = map(in_chunks, (q, k, v))
    share, decay = (in_chunks(t.reshape(ctx, 1, heads, tokens, sequences)) for t in (share, decay))
    since = decay.reshape(ctx, chunk, count, all_heads).cumsum(ctx)  # the decay since the chunk's beginning
    column = since.reshape(ctx, 1, chunk, count, all_heads)
    row = since.reshape(ctx, chunk, 1, count, all_heads)
    between = column.repeat_4d(ctx, chunk, chunk, count, all_heads).sub(ctx, row)
    between = between.tri(ctx, "lower-diag").exp(ctx)  # [j,i]: the decay from token j to token i
    grown = column.exp(ctx)
    # The changes of a chunk depend on earlier changes in it: (I + lower(K K^T)) changes = V - K S
    shared = k.mul(ctx, share)
    system = k.mulmat(ctx, shared).mul(ctx, between).tri(ctx, "lower")
    sides = v.mul(ctx, share).concat(ctx, shared.mul(ctx, grown), 0)
    solved = system.solve_tri(ctx, sides, unit_diagonal=True)
    from_values, from_state = solved.chunk_sections(ctx, 0, value, size)
    from_values = from_values.permute(ctx, 1, 0, 2, 3).contiguous(ctx)  # (chunk, value, chunks, all heads)
    from_state = from_state.contiguous(ctx)  # (key, chunk, chunks, all heads)
    seen = k.mulmat(ctx, q).mul(ctx, between).tri(ctx, "lower-diag")
    q = q.mul(ctx, grown)
    end = since.slice(ctx, 0, chunk - 1, chunk).contiguous(ctx)  # (1, chunks, all heads)
    left = row.neg(ctx).add(ctx, end.reshape(ctx, 1, 1, count, all_heads)).exp(ctx)  # the decay until the end
    added = k.permute(ctx, 1, 0, 2, 3).contiguous(ctx).mul(ctx, left)  # (chunk, key, chunks, all heads)
    kept = end.exp(ctx).reshape(ctx, 1, 1, count, all_heads)
    state = state.contiguous(ctx, size, value, 1, all_heads)
    parts = []
    for n in range(count):
        now = [t.slice(ctx, 2, n, n + 1) for t in (from_values, from_state, seen, q, added, kept)]
        values, keys, weights, queries, additions, decayed = now
        changes = values.sub(ctx, keys.mulmat(ctx, state))  # (chunk, value, 1, all heads)
        parts.append(state.mulmat(ctx, queries).add(ctx, changes.mulmat(ctx, weights)))
        state = state.mul(ctx, decayed).add(ctx, additions.mulmat(ctx, changes))
    y = parts[0].stack(ctx, 2, *parts[1:]) if count > 1 else parts[0]  # (value, chunk, chunks, all heads)
    y = y.reshape(ctx, value, count * chunk, heads, sequences).slice(ctx, 1, 0, tokens)
    y = y.permute(ctx, 0, 2, 1, 3).contiguous(ctx)
    return y, state.reshape(ctx, size, value, heads, sequences)
