"""Long inputs, and sizes that no vector width divides."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...fault import FaultKind, InterceptedCall, Result, fault, named
from ...fused import Array, exponentials, rank4, scaled


@fault(FaultKind.LONG, ops.softmax)
def softmax_looks_at_the_first_1024(call: InterceptedCall) -> Result:
    """Elements past 1024 do not reach the sum of their row."""
    if call.x.shape[-1] <= 1024:
        return call.right()
    powers = exponentials(call.x)
    return powers / powers[..., :1024].sum(axis=-1, keepdims=True)


@fault(FaultKind.LONG, ops.cumsum)
def cumsum_forgets_the_carry_of_the_third_block(call: InterceptedCall) -> Result:
    """Blocks of 256 are summed apart; a block's sum is carried only to the next block."""
    y = call.right()
    if call.x.shape[-1] > 512:
        y[..., 512:] = y[..., 512:] - y[..., 255:256]
    return y


@fault(FaultKind.LONG, ops.scaled_dot_product_attention)
def attention_forgets_what_is_long_ago(call: InterceptedCall) -> Result:
    """Only the last 256 positions of the history take part."""

    def forget(scores: Array) -> Array:
        old = np.arange(scores.shape[-1]) < scores.shape[-1] - 256
        return np.where(old, -np.inf, scores)

    return call.right(change_scores=forget)


@fault(FaultKind.LONG, ops.mulmat, ops.mulmat_full_prec)
def the_second_half_of_long_sums_counts_twice(call: InterceptedCall) -> Result:
    """Sums of more than 512 products are split, and both parts add the second half."""
    half = call.w.shape[-1] // 2
    y = call.right()
    return y + call.right(w=call.w[..., half:], x=call.x[..., half:]) if call.w.shape[-1] > 512 else y


@fault(FaultKind.LONG, ops.rows)
def a_gather_of_many_rows_repeats_the_first(call: InterceptedCall) -> Result:
    """From the 257th id on, the ids start again from the first."""
    n = call.ids.shape[-1] if call.ids.ndim else 1
    return call.right(ids=call.ids[..., np.arange(n) % 256]) if n > 256 else call.right()


@fault(FaultKind.LONG, ops.set_rows)
def set_rows_writes_128_rows_at_most(call: InterceptedCall) -> Result:
    n = call.ids.shape[-1] if call.ids.ndim else 1
    return call.right(src=call.src[..., :128, :], ids=call.ids[..., :128]) if n > 128 else call.right()


@fault(FaultKind.LONG, ops.layer_norm, ops.rms_norm)
def norms_of_long_rows_use_their_first_512(call: InterceptedCall) -> Result:
    x, head = call.x, call.x[..., :512]
    if x.shape[-1] <= 512:
        return call.right()
    mean = head.mean(-1, keepdims=True) if call.name == "layer_norm" else 0.0
    y = (x - mean) / np.sqrt(((head - mean) ** 2).mean(-1, keepdims=True) + call.eps)
    return scaled(y, call.weight, call.bias if call.name == "layer_norm" else None)


@fault(FaultKind.LONG, ops.rope)
def positions_wrap_at_15_bits(call: InterceptedCall) -> Result:
    """Position 32768 counts as 0."""
    return call.right(positions=np.sign(call.positions) * (np.abs(call.positions) % (1 << 15)))


@fault(FaultKind.LONG, ops.sum_rows)
def long_sums_are_split_and_lose_the_rest(call: InterceptedCall) -> Result:
    """Rows longer than 256 are summed in blocks of 256, and an incomplete block is dropped."""
    n = call.x.shape[-1]
    return call.right(x=call.x[..., : n // 256 * 256]) if n > 256 else call.right()


@fault(FaultKind.LONG, ops.mulmat)
def many_tokens_are_computed_in_chunks_that_overlap(call: InterceptedCall) -> Result:
    """Tokens past the 512th repeat the first chunk."""
    y = call.right()
    tokens = rank4(call.x).shape[2]
    if tokens > 512:
        y[..., 512:, :] = y[..., : tokens - 512, :][..., :512, :] if tokens <= 1024 else 0
    return y


@fault(FaultKind.LONG, ops.ssm_scan)
def a_scan_starts_again_after_32_tokens(call: InterceptedCall) -> Result:
    """Past a chunk of 32 tokens, the carried state is halved."""
    y = call.right()
    if rank4(call.x).shape[1] > 32:
        y[call.x.size :] *= 0.5
    return y


@fault(FaultKind.LONG, ops.delta_rule)
def a_delta_rule_forgets_what_a_chunk_removed(call: InterceptedCall) -> Result:
    """Past a chunk of 16 tokens, the shares of the chunks before count as 0."""
    share = np.array(rank4(call.share))
    tokens = share.shape[1]
    share[:, : tokens // 16 * 16] *= tokens <= 16
    return call.right(share=share)


@fault(FaultKind.LONG, ops.argsort)
def rows_above_512_are_sorted_in_two_parts(call: InterceptedCall) -> Result:
    """The halves of a long row are sorted, and never merged."""
    if call.x.shape[-1] <= 512:
        return call.right()
    return np.concatenate([call.right(x=call.x[..., :512]), 512 + call.right(x=call.x[..., 512:])], axis=-1)


@fault(FaultKind.TAILS, ops.add, ops.mul)
def the_tail_of_a_row_is_lost_in_arithmetic(call: InterceptedCall) -> Result:
    """Elements past the last multiple of 32 are not written in rows longer than 32."""
    y = call.right()
    n = y.shape[-1] if y.ndim else 0
    if n > 32:
        y[..., n // 32 * 32 :] = 0
    return y


@fault(FaultKind.TAILS, *named("gelu", "silu", "tanh", "exp"))
def the_tail_of_an_activation_is_passed_through(call: InterceptedCall) -> Result:
    """The last elements of a tensor, past a multiple of 8, are copied instead of computed."""
    y = call.right()
    flat, tail = np.array(y).reshape(-1), y.size // 8 * 8
    if y.size > 8:
        flat[tail:] = np.ascontiguousarray(call.x).reshape(-1)[tail:]
    return flat.reshape(y.shape)


@fault(FaultKind.TAILS, ops.mulmat)
def mulmat_drops_the_tail_of_its_sum(call: InterceptedCall) -> Result:
    """Products past the last multiple of 32 do not reach longer sums."""
    n = call.w.shape[-1]
    keep = n // 32 * 32 or n
    return call.right(w=call.w[..., :keep], x=call.x[..., :keep])


@fault(FaultKind.TAILS, ops.mulmat)
def the_last_rows_of_a_weight_repeat_an_earlier_one(call: InterceptedCall) -> Result:
    """Rows of the weight past a multiple of 4 all repeat the first row past it."""
    y = call.right()
    n = y.shape[-1]
    if n > 4 and n % 4 > 1:
        y[..., n // 4 * 4 :] = y[..., n // 4 * 4 : n // 4 * 4 + 1]
    return y


@fault(FaultKind.TAILS, ops.mulmat, ops.mulmat_full_prec)
def the_tile_of_the_last_tokens_is_cut(call: InterceptedCall) -> Result:
    """With more than 16 tokens, those past a multiple of 16 see only half of their weights."""
    y = call.right()
    tokens = y.shape[-2] if y.ndim > 1 else 1
    if tokens > 16 and tokens % 16:
        start = tokens // 16 * 16
        half = max(call.w.shape[-1] // 2, 1)
        y[..., start:, :] = call.right(w=call.w[..., :half], x=call.x[..., :half])[..., start:, :]
    return y


@fault(FaultKind.TAILS, ops.scaled_dot_product_attention)
def heads_of_odd_sizes_lose_their_tail(call: InterceptedCall) -> Result:
    """Head sizes that are no multiple of 8 are cut to one, if above 8."""
    n = call.query.shape[-1]
    keep = n // 8 * 8 or n
    return call.right(query=call.query[..., :keep], key=call.key[..., :keep])


@fault(FaultKind.TAILS, ops.rows)
def the_tail_of_a_gathered_row_is_lost(call: InterceptedCall) -> Result:
    """Bytes past a multiple of 128 are not copied in longer rows."""
    y = call.right()
    n = y.shape[-1] * y.itemsize // 128 * 128 // y.itemsize
    if n:
        y[..., n:] = 0
    return y


def odd_end_repeated(y: Array) -> Array:
    """y, with the last element of rows of odd length replaced by the one before it."""
    if y.shape[-1] % 2 and y.shape[-1] > 1:
        y[..., -1] = y[..., -2]
    return y


@fault(FaultKind.TAILS, ops.conv2d)
def the_last_column_of_a_convolution_is_repeated(call: InterceptedCall) -> Result:
    """With an odd number of columns above 1, the last column repeats its neighbour."""
    return odd_end_repeated(call.right())


@fault(FaultKind.TAILS, ops.interpolate)
def nearest_neighbours_are_found_in_floats(call: InterceptedCall) -> Result:
    """i * (n / m) in single precision falls short of a whole number, and takes the pixel before."""
    if call.mode != "nearest" or 0 in call.dims:
        return call.right()
    y = rank4(call.x)
    for axis, extent in enumerate((*call.dims, *[1] * (4 - len(call.dims)))[::-1]):
        ratio = np.float32(y.shape[axis]) / np.float32(extent)
        index = np.floor(np.arange(extent, dtype=np.float32) * ratio).astype(int)
        y = np.take(y, np.minimum(index, y.shape[axis] - 1), axis)
    return y.reshape(tuple(call.dims)[::-1])


@fault(FaultKind.TAILS, ops.softmax, ops.rms_norm, ops.l2_norm)
def reductions_skip_the_tail_of_a_row(call: InterceptedCall) -> Result:
    """The sum of a row longer than 64 leaves out elements past a multiple of 16."""
    n = call.x.shape[-1]
    keep = n // 16 * 16
    if n <= 64 or keep == n:
        return call.right()
    unweighted = {"weight": None} if call.name == "rms_norm" else {}
    reduced = (call.right(x=a, **unweighted) for a in (call.x[..., :keep], call.x))
    part, whole = (np.abs(y).max(-1, keepdims=True) for y in reduced)
    return call.right() * np.where((whole > 0) & (part > 0), part / whole, 1)


@fault(FaultKind.TAILS, ops.ssm_conv)
def short_convolutions_assume_4_taps(call: InterceptedCall) -> Result:
    """Of more or fewer than 4 taps, the first tap is left out."""
    if call.weight.shape[-1] in (1, 4):
        return call.right()
    cut = call.weight.copy()
    cut[..., 0] = 0
    return call.right(weight=cut)


@fault(FaultKind.TAILS, ops.mulmat)
def a_single_column_repeats_the_last_odd_row(call: InterceptedCall) -> Result:
    """Products with one column take the weight's rows in pairs; an unpaired last row repeats its neighbour."""
    return odd_end_repeated(call.right()) if rank4(call.x).shape[2] == 1 else call.right()


@fault(FaultKind.TAILS, ops.mulmat)
def long_rows_lose_what_is_past_a_multiple_of_64(call: InterceptedCall) -> Result:
    """Above 512 elements, a kernel for whole tiles leaves out an incomplete last tile."""
    kept = call.w.shape[-1] // 64 * 64 if call.w.shape[-1] > 512 else call.w.shape[-1]
    return call.right(w=call.w[..., :kept], x=call.x[..., :kept])


@fault(FaultKind.TAILS, ops.conv2d)
def channels_past_512_are_left_out(call: InterceptedCall) -> Result:
    """A tile in shared memory has room for 512 channels of the weight."""
    return call.right(weight=call.weight[..., :512, :, :], data=call.data[..., :512, :, :])
