"""Right on small inputs, and garbage on long ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import ops

from ..faults import Array, Kernel, fault
from ..fused import rank4

LONG = "right on small, garbage on long inputs"


@fault(LONG, ops.softmax, like="L13155")
def softmax_looks_at_the_first_1024(right: Kernel, x: Array) -> Array:
    """Elements past 1024 do not reach the sum of their row."""
    if x.shape[-1] <= 1024:
        return right(x)
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(x - top)
    return np.asarray(powers / powers[..., :1024].sum(axis=-1, keepdims=True))


@fault(LONG, ops.cumsum, like="T192212")
def cumsum_forgets_the_carry_of_the_third_block(right: Kernel, x: Array) -> Array:
    """Blocks of 256 are summed apart; what is carried reaches only the next one."""
    y = right(x)
    if x.shape[-1] > 512:
        y[..., 512:] = y[..., 512:] - y[..., 255:256]
    return y


@fault(LONG, ops.scaled_dot_product_attention, like="ollama#17895")
def attention_forgets_what_is_long_ago(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """Only the last 256 positions of the history take part."""

    def forget(scores: Array) -> Array:
        old = np.arange(scores.shape[-1]) < scores.shape[-1] - 256
        return np.where(old, -np.inf, scores)

    return right(*args, change_scores=forget, **keywords)


@fault(LONG, ops.mulmat, ops.mulmat_full_prec, like="L17746")
def the_second_half_of_long_sums_counts_twice(right: Kernel, w: Array, x: Array) -> Array:
    """Sums of more than 512 products are split in two, and the second half is added by both parts."""
    half = w.shape[-1] // 2
    y = right(w, x)
    return y + right(w[..., half:], x[..., half:]) if w.shape[-1] > 512 else y


@fault(LONG, ops.rows, like="L16849")
def a_gather_of_many_rows_repeats_the_first(right: Kernel, x: Array, ids: Array) -> Array:
    """From the 257th id on, rows are those of the first ids again."""
    n = ids.shape[-1] if ids.ndim else 1
    return right(x, ids[..., np.arange(n) % 256]) if n > 256 else right(x, ids)


@fault(LONG, ops.set_rows, like="L16849")
def set_rows_writes_128_rows_at_most(right: Kernel, x: Array, src: Array, ids: Array) -> Array:
    """Rows after the first 128 are not written."""
    n = ids.shape[-1] if ids.ndim else 1
    return right(x, src[..., :128, :], ids[..., :128]) if n > 128 else right(x, src, ids)


@fault(LONG, ops.layer_norm, ops.rms_norm, like="L26708")
def norms_of_long_rows_use_their_first_512(right: Kernel, x: Array, *args: Any, **keywords: Any) -> Array:
    """Statistics of a row longer than 512 are those of its first 512 elements, scaled up."""
    if x.shape[-1] <= 512:
        return right(x, *args, **keywords)
    *scaling, eps = args or (None, 1e-5)
    head = x[..., :512]
    mean = head.mean(-1, keepdims=True) if right.__name__ == "layer_norm" else 0.0
    y = (x - mean) / np.sqrt(((head - mean) ** 2).mean(-1, keepdims=True) + eps)
    for operand, apply in zip(scaling, (np.multiply, np.add), strict=False):
        y = y if operand is None else apply(y, operand.reshape(-1))
    return np.asarray(y)


@fault(LONG, ops.rope, like="L15629")
def positions_wrap_at_15_bits(right: Kernel, x: Array, positions: Array, *rest: Any) -> Array:
    """Position 32768 counts as 0."""
    return right(x, np.sign(positions) * (np.abs(positions) % (1 << 15)), *rest)


@fault(LONG, ops.sum_rows, like="L25568")
def long_sums_are_split_and_lose_the_rest(right: Kernel, x: Array) -> Array:
    """Rows longer than 256 are summed in blocks of 256, and what fills none is dropped."""
    n = x.shape[-1]
    return right(x[..., : n // 256 * 256]) if n > 256 else right(x)


@fault(LONG, ops.mulmat, like="ollama#17895")
def many_tokens_are_computed_in_chunks_that_overlap(right: Kernel, w: Array, x: Array) -> Array:
    """Tokens past the 512th are those of the first chunk."""
    y = right(w, x)
    tokens = rank4(x).shape[2]
    if tokens > 512:
        y[..., 512:, :] = y[..., : tokens - 512, :][..., :512, :] if tokens <= 1024 else 0
    return y


@fault(LONG, ops.ssm_scan, like="L17746")
def a_scan_starts_again_after_32_tokens(right: Kernel, s: Array, x: Array, *rest: Array) -> Array:
    """The state is not carried past a chunk of 32 tokens: what came before it counts half."""
    y = right(s, x, *rest)
    if rank4(x).shape[1] > 32:
        y[x.size :] *= 0.5
    return y


@fault(LONG, ops.argsort, like="L17659")
def rows_above_512_are_sorted_in_two_parts(right: Kernel, x: Array) -> Array:
    """The halves of a long row are sorted, and never merged."""
    if x.shape[-1] <= 512:
        return right(x)
    return np.concatenate([right(x[..., :512]), 512 + right(x[..., 512:])], axis=-1)
