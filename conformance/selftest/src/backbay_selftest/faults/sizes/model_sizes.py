"""Sizes that real models have, and that small tests never reach."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...fault import FaultKind, InterceptedCall, Result, fault, float16, named
from ...fused import Array, rank4


@fault(FaultKind.TAILS, ops.scaled_dot_product_attention)
def heads_of_80_are_read_as_64(call: InterceptedCall) -> Result:
    """A kernel is compiled for heads of 64 and 128; heads of 80 take the smaller one."""
    if call.query.shape[-1] != 80:
        return call.right()
    return call.right(query=call.query[..., :64], key=call.key[..., :64])


@fault(FaultKind.TAILS, ops.scaled_dot_product_attention)
def heads_of_96_are_padded_with_what_follows(call: InterceptedCall) -> Result:
    """Keys of 96 elements are read as 128, the rest of the first part."""
    q, k = call.query, call.key
    if q.shape[-1] != 96:
        return call.right()
    return call.right(query=np.concatenate([q, q[..., :32]], -1), key=np.concatenate([k, k[..., :32]], -1))


@fault(FaultKind.TAILS, ops.scaled_dot_product_attention)
def values_of_heads_past_256_lose_their_tail(call: InterceptedCall) -> Result:
    """The accumulator of a group of threads has 256 columns."""
    y = call.right()
    if call.vmla is None:
        y[..., 256:] = 0
    return y


@fault(FaultKind.TAILS, ops.scaled_dot_product_attention)
def keys_longer_than_256_are_cut(call: InterceptedCall) -> Result:
    """Shared memory has room for 256 elements of a key, as in heads of 576 beside values of 512."""
    return call.right(query=call.query[..., :256], key=call.key[..., :256])


@fault(FaultKind.TAILS, ops.scaled_dot_product_attention)
def keys_of_192_are_reduced_as_128(call: InterceptedCall) -> Result:
    """With 192 elements in a key, the sum's third warp is not added."""
    cut = 128 if call.query.shape[-1] == 192 else None
    return call.right(query=call.query[..., :cut], key=call.key[..., :cut])


@fault(FaultKind.WRONG_AXIS, ops.scaled_dot_product_attention)
def groups_of_more_than_8_heads_wrap(call: InterceptedCall) -> Result:
    """A tile holds 8 heads of a group; the heads after them read the next group's keys."""

    def spread(x: Array, heads: int) -> Array:
        kv = max(x.shape[1], 1)
        each = heads // kv
        at = np.arange(heads)
        group = np.where(at % max(each, 1) < 8, at // max(each, 1), (at // max(each, 1) + 1) % kv)
        return x[:, group]

    return call.right(spread=spread)


@fault(FaultKind.WRONG_AXIS, ops.scaled_dot_product_attention)
def a_group_of_12_is_rounded_up_to_16(call: InterceptedCall) -> Result:
    """The heads of a group are padded to a power of two, and the padding is never cut: heads move."""

    def spread(x: Array, heads: int) -> Array:
        each = max(heads // max(x.shape[1], 1), 1)
        padded = 1 << (each - 1).bit_length() if each > 8 else each
        return x[:, np.arange(heads) // padded % max(x.shape[1], 1)]

    y = call.right(spread=spread)
    heads, kv = call.query.shape[-2], call.key.shape[-2]
    if kv == 1 and heads == 12:
        y[..., 8:, :] = y[..., :4, :]
    return y


@fault(FaultKind.LONG, ops.scaled_dot_product_attention)
def a_step_of_many_tokens_masks_like_its_first_32(call: InterceptedCall) -> Result:
    """The mask of a tile of 32 tokens serves the tiles after it."""
    return call.right(change_mask=lambda mask: mask[:, :, np.arange(mask.shape[2]) % 32])


@fault(FaultKind.ZERO, ops.scaled_dot_product_attention)
def an_empty_history_gives_nan(call: InterceptedCall) -> Result:
    """The sum of no weights divides 0 by 0."""
    y = call.right()
    return y if call.key.shape[-3] else np.full_like(y, np.nan)


@fault(FaultKind.WRONG_AXIS, ops.mulmat)
def slices_are_shared_by_shifts(call: InterceptedCall) -> Result:
    """Groups of slices are a power of two; 12 activations of one weight are taken for 16 of two."""
    w, x = rank4(call.w), rank4(call.x)
    each = x.shape[1] // max(w.shape[1], 1)
    if each < 8 or not each & (each - 1) or w.shape[1] < 1:
        return call.right()
    index = np.arange(x.shape[1]) // (1 << (each - 1).bit_length())
    y = call.right(w=w[:, np.minimum(index, w.shape[1] - 1)])
    y[..., 8:, :, :] = y[..., :1, :, :]
    return y


@fault(FaultKind.PRECISION, ops.mulmat, ops.mulmat_full_prec)
def sums_past_4096_are_split_in_half_precision(call: InterceptedCall) -> Result:
    """From 4096 terms on, the sum is split, and the parts meet in f16."""
    k = call.w.shape[-1]
    if k < 4096:
        return call.right()
    parts = [
        call.right(w=call.w[..., low : low + 2048], x=call.x[..., low : low + 2048])
        for low in range(0, k, 2048)
    ]
    return sum(float16(part) for part in parts)


@fault(FaultKind.LONG, ops.mulmat)
def long_sums_of_many_tokens_lose_a_block(call: InterceptedCall) -> Result:
    """Products of more than 4000 terms and 16 tokens take another kernel, which leaves out the block from 2048 on."""
    tokens = rank4(call.x).shape[2]
    if call.w.shape[-1] < 4000 or tokens <= 16:
        return call.right()
    kept = np.r_[0:2048, 2080 : call.w.shape[-1]]
    return call.right(w=call.w[..., kept], x=call.x[..., kept])


@fault(FaultKind.OVERFLOW, ops.conv2d, ops.im2col)
def taps_of_a_kernel_are_counted_to_127(call: InterceptedCall) -> Result:
    """Kernels of 14 by 14 and more have more taps than a signed byte: the rest repeats the first."""
    kh, kw = call.weight.shape[-2:] if call.weight.ndim > 1 else (1, 1)
    if kh * kw <= 127:
        return call.right()
    if call.name == "conv2d":
        weight = np.array(call.weight)
        weight.reshape(*weight.shape[:-2], -1)[..., 127:] = 0
        return call.right(weight=weight)
    y = call.right()
    y.reshape(*y.shape[:-1], -1, kh * kw)[..., 127:] = 0
    return y


@fault(FaultKind.TAILS, ops.conv2d, ops.conv3d)
def channels_past_32_are_not_summed(call: InterceptedCall) -> Result:
    """A warp sums 32 input channels."""
    weight = np.array(call.weight)
    if call.name == "conv2d":
        rank4(weight)[:, 32:] = 0
    elif call.c > 32:
        weight.reshape(-1, call.c, *weight.shape[1:])[:, 32:] = 0
    return call.right(weight=weight)


@fault(FaultKind.TAILS, ops.conv2d, ops.conv1d_dw, ops.ssm_conv)
def channels_past_64_repeat_the_first(call: InterceptedCall) -> Result:
    """Output channels are numbered modulo 64."""
    y = call.right()
    if call.name == "ssm_conv":
        y[..., 64:] = y[..., : max(0, y.shape[-1] - 64)][..., :64] if y.shape[-1] <= 128 else 0
        return y
    axis = rank4(y).shape[1] if call.name == "conv2d" else (y.shape[-2] if y.ndim > 1 else 1)
    if axis > 64:
        (rank4(y)[:, 64:] if call.name == "conv2d" else y[..., 64:, :])[...] = 0
    return y


@fault(FaultKind.TAILS, ops.ssm_scan)
def states_past_32_do_not_reach_the_result(call: InterceptedCall) -> Result:
    """A warp holds 32 states of a head, and reduces its own."""
    c = np.array(call.C)
    c[..., 32:] = 0
    y, right = call.right(C=c), call.right()
    right[: call.x.size] = y[: call.x.size]
    return right


@fault(FaultKind.TAILS, ops.delta_rule)
def keys_past_64_of_a_head_are_not_read(call: InterceptedCall) -> Result:
    """A block of threads holds 64 keys of a head."""
    q = np.array(call.q)
    q[..., 64:] = 0
    return call.right(q=q)


@fault(FaultKind.TAILS, ops.delta_rule)
def a_delta_rule_has_one_decay_for_a_head(call: InterceptedCall) -> Result:
    """The first channel's decay serves all channels."""
    return call.right(decay=np.broadcast_to(call.decay[..., :1], call.decay.shape))


@fault(FaultKind.TAILS, ops.ssm_scan)
def scans_of_many_heads_share_a_group(call: InterceptedCall) -> Result:
    """Heads past the 64th read the first group and the first head's decay."""
    a = np.array(call.A)
    if a.ndim > 1 and a.shape[0] > 64:
        a[64:] = a[:1]
    return call.right(A=a)


@fault(FaultKind.ROPE, ops.rope)
def heads_past_the_64th_are_not_turned(call: InterceptedCall) -> Result:
    y = call.right()
    if y.ndim > 1 and y.shape[-2] > 64:
        y[..., 64:, :] = call.x[..., 64:, :]
    return y


@fault(FaultKind.ROPE, ops.rope)
def partial_heads_past_128_are_cleared(call: InterceptedCall) -> Result:
    """Where 64 or more elements are turned of a longer head, those past the 128th come out as zeros."""
    y = call.right()
    if call.mode != "vision" and 64 <= call.dim < y.shape[-1]:
        y[..., 128:] = 0
    return y


@fault(FaultKind.OVERFLOW, ops.repeat)
def repeats_are_counted_in_5_bits(call: InterceptedCall) -> Result:
    """The 33rd copy is not written."""
    y = call.right()
    axis = max(call.x.ndim, call.dim + 1) - 1 - call.dim
    extent = y.shape[axis] // max(call.n, 1)
    np.moveaxis(y, axis, 0)[32 * extent :] = 0
    return y


@fault(FaultKind.TAILS, ops.rows)
def rows_longer_than_4096_are_copied_in_part(call: InterceptedCall) -> Result:
    y = call.right()
    y[..., 4096:] = 0
    return y


@fault(FaultKind.OVERFLOW, ops.mulmat_id, ops.add_id)
def more_than_4_experts_of_a_token_wrap(call: InterceptedCall) -> Result:
    """A token's experts are kept in a vector of 4 numbers."""
    ids = call.ids
    return call.right(ids=ids[..., np.arange(ids.shape[-1]) % 4])


@fault(FaultKind.LONG, *named("softmax", "rms_norm", "layer_norm", "sum_rows"))
def long_rows_are_reduced_in_3_parts_at_most(call: InterceptedCall) -> Result:
    """Rows of more than 3072 elements: the last quarter counts as what lies in the third."""
    x = np.array(call.x)
    n = x.shape[-1]
    if n <= 3072:
        return call.right()
    y = call.right()
    x[..., 3072:] = x[..., 2048 : 2048 + n - 3072] if n <= 4096 else 0
    return call.right(x=x) if call.name == "sum_rows" else y * (1 + 0.01 * (x.shape[-1] > 3072))


@fault(FaultKind.TAILS, ops.interpolate)
def an_image_of_one_pixel_is_the_corner(call: InterceptedCall) -> Result:
    """Shrunk to one pixel, the scale divides by 0 and falls back to the first pixel."""
    y = call.right()
    single = call.mode == "bilinear" and y.size and tuple(call.dims[:2]) == (1, 1)
    return np.broadcast_to(rank4(call.x)[..., :1, :1], rank4(y).shape).reshape(y.shape) if single else y
