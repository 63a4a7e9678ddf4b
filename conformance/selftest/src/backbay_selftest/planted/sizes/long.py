"""Faults that only long inputs show."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, fault
from ...fused import Array, exponentials, rank4, scaled


@fault(Kind.LONG, ops.softmax)
def softmax_looks_at_the_first_1024(call: BoundCall) -> Result:
    """Elements past 1024 do not reach the sum of their row."""
    if call.x.shape[-1] <= 1024:
        return call.right()
    powers = exponentials(call.x)
    return powers / powers[..., :1024].sum(axis=-1, keepdims=True)


@fault(Kind.LONG, ops.cumsum)
def cumsum_forgets_the_carry_of_the_third_block(call: BoundCall) -> Result:
    """Blocks of 256 are summed apart; a block's sum is carried only to the next block."""
    y = call.right()
    if call.x.shape[-1] > 512:
        y[..., 512:] = y[..., 512:] - y[..., 255:256]
    return y


@fault(Kind.LONG, ops.scaled_dot_product_attention)
def attention_forgets_what_is_long_ago(call: BoundCall) -> Result:
    """Only the last 256 positions of the history take part."""

    def forget(scores: Array) -> Array:
        old = np.arange(scores.shape[-1]) < scores.shape[-1] - 256
        return np.where(old, -np.inf, scores)

    return call.right(change_scores=forget)


@fault(Kind.LONG, ops.mulmat, ops.mulmat_full_prec)
def the_second_half_of_long_sums_counts_twice(call: BoundCall) -> Result:
    """Sums of more than 512 products are split, and both parts add the second half."""
    half = call.w.shape[-1] // 2
    y = call.right()
    return y + call.right(w=call.w[..., half:], x=call.x[..., half:]) if call.w.shape[-1] > 512 else y


@fault(Kind.LONG, ops.rows)
def a_gather_of_many_rows_repeats_the_first(call: BoundCall) -> Result:
    """From the 257th id on, the ids start again from the first."""
    n = call.ids.shape[-1] if call.ids.ndim else 1
    return call.right(ids=call.ids[..., np.arange(n) % 256]) if n > 256 else call.right()


@fault(Kind.LONG, ops.set_rows)
def set_rows_writes_128_rows_at_most(call: BoundCall) -> Result:
    n = call.ids.shape[-1] if call.ids.ndim else 1
    return call.right(src=call.src[..., :128, :], ids=call.ids[..., :128]) if n > 128 else call.right()


@fault(Kind.LONG, ops.layer_norm, ops.rms_norm)
def norms_of_long_rows_use_their_first_512(call: BoundCall) -> Result:
    x, head = call.x, call.x[..., :512]
    if x.shape[-1] <= 512:
        return call.right()
    mean = head.mean(-1, keepdims=True) if call.name == "layer_norm" else 0.0
    y = (x - mean) / np.sqrt(((head - mean) ** 2).mean(-1, keepdims=True) + call.eps)
    return scaled(y, call.weight, call.bias if call.name == "layer_norm" else None)


@fault(Kind.LONG, ops.rope)
def positions_wrap_at_15_bits(call: BoundCall) -> Result:
    """Position 32768 counts as 0."""
    return call.right(positions=np.sign(call.positions) * (np.abs(call.positions) % (1 << 15)))


@fault(Kind.LONG, ops.sum_rows)
def long_sums_are_split_and_lose_the_rest(call: BoundCall) -> Result:
    """Rows longer than 256 are summed in blocks of 256, and an incomplete block is dropped."""
    n = call.x.shape[-1]
    return call.right(x=call.x[..., : n // 256 * 256]) if n > 256 else call.right()


@fault(Kind.LONG, ops.mulmat)
def many_tokens_are_computed_in_chunks_that_overlap(call: BoundCall) -> Result:
    """Tokens past the 512th repeat the first chunk."""
    y = call.right()
    tokens = rank4(call.x).shape[2]
    if tokens > 512:
        y[..., 512:, :] = y[..., : tokens - 512, :][..., :512, :] if tokens <= 1024 else 0
    return y


@fault(Kind.LONG, ops.ssm_scan)
def a_scan_starts_again_after_32_tokens(call: BoundCall) -> Result:
    """Past a chunk of 32 tokens, the carried state is halved."""
    y = call.right()
    if rank4(call.x).shape[1] > 32:
        y[call.x.size :] *= 0.5
    return y


@fault(Kind.LONG, ops.delta_rule)
def a_delta_rule_forgets_what_a_chunk_removed(call: BoundCall) -> Result:
    """Past a chunk of 16 tokens, the shares of the chunks before count as 0."""
    share = np.array(rank4(call.share))
    tokens = share.shape[1]
    share[:, : tokens // 16 * 16] *= tokens <= 16
    return call.right(share=share)


@fault(Kind.LONG, ops.argsort)
def rows_above_512_are_sorted_in_two_parts(call: BoundCall) -> Result:
    """The halves of a long row are sorted, and never merged."""
    if call.x.shape[-1] <= 512:
        return call.right()
    return np.concatenate([call.right(x=call.x[..., :512]), 512 + call.right(x=call.x[..., 512:])], axis=-1)
