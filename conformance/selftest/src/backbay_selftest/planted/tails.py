"""Sizes that no vector width divides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import ops

from ..faults import Array, Kernel, fault, named
from ..fused import rank4

TAILS = "odd sizes, vector tails, head sizes"


@fault(TAILS, ops.add, ops.mul, like="L26708")
def the_tail_of_a_row_is_lost_in_arithmetic(right: Kernel, x: Array, t2: Array) -> Array:
    """Elements past the last multiple of 32 are not written in rows longer than 32."""
    y = right(x, t2)
    n = y.shape[-1] if y.ndim else 0
    if n > 32:
        y[..., n // 32 * 32 :] = 0
    return y


@fault(TAILS, *named("gelu", "silu", "tanh", "exp"), like="L26708")
def the_tail_of_an_activation_is_passed_through(
    right: Kernel, x: Array, *args: Any, **keywords: Any
) -> Array:
    """The last elements of a tensor, past a multiple of 8, are copied instead of computed."""
    y = right(x, *args, **keywords)
    flat, tail = np.array(y).reshape(-1), y.size // 8 * 8
    if y.size > 8:
        flat[tail:] = np.ascontiguousarray(x).reshape(-1)[tail:]
    return flat.reshape(y.shape)


@fault(TAILS, ops.mulmat, like="L15592")
def mulmat_drops_the_tail_of_its_sum(right: Kernel, w: Array, x: Array) -> Array:
    """Products past the last multiple of 32 do not reach the sum, if there are others."""
    n = w.shape[-1]
    keep = n // 32 * 32 or n
    return right(w[..., :keep], x[..., :keep])


@fault(TAILS, ops.mulmat, like="L20031")
def the_last_rows_of_a_weight_repeat_an_earlier_one(right: Kernel, w: Array, x: Array) -> Array:
    """Rows of the weight beyond a multiple of 4 all give the first of them."""
    y = right(w, x)
    n = y.shape[-1]
    if n > 4 and n % 4 > 1:
        y[..., n // 4 * 4 :] = y[..., n // 4 * 4 : n // 4 * 4 + 1]
    return y


@fault(TAILS, ops.mulmat, ops.mulmat_full_prec, like="L26708")
def the_tile_of_the_last_tokens_is_cut(right: Kernel, w: Array, x: Array) -> Array:
    """With more than 16 tokens, those past a multiple of 16 see only half of their weights."""
    y = right(w, x)
    tokens = y.shape[-2] if y.ndim > 1 else 1
    if tokens > 16 and tokens % 16:
        start = tokens // 16 * 16
        half = max(w.shape[-1] // 2, 1)
        y[..., start:, :] = right(w[..., :half], x[..., :half])[..., start:, :]
    return y


@fault(TAILS, ops.scaled_dot_product_attention, like="L20031")
def heads_of_odd_sizes_lose_their_tail(
    right: Kernel, query: Array, key: Array, value: Array, *args: Any, **keywords: Any
) -> Array:
    """Head sizes that are no multiple of 8 are cut to one, if above 8."""
    n = query.shape[-1]
    keep = n // 8 * 8 or n
    return right(query[..., :keep], key[..., :keep], value, *args, **keywords)


@fault(TAILS, ops.rows, like="L26708")
def the_tail_of_a_gathered_row_is_lost(right: Kernel, x: Array, ids: Array) -> Array:
    """Bytes of a row past a multiple of 128 are not copied, if there are that many."""
    y = right(x, ids)
    n = y.shape[-1] * y.itemsize // 128 * 128 // y.itemsize
    if n:
        y[..., n:] = 0
    return y


@fault(TAILS, ops.conv2d, like="L15592")
def the_last_column_of_a_convolution_is_repeated(right: Kernel, *args: Any) -> Array:
    """With an odd number of columns above 1, the last one is the one before."""
    y = right(*args)
    if y.shape[-1] % 2 and y.shape[-1] > 1:
        y[..., -1] = y[..., -2]
    return y


@fault(TAILS, ops.interpolate, like="L26708")
def nearest_neighbours_are_found_in_floats(right: Kernel, x: Array, dims: Sequence[int], mode: str) -> Array:
    """i * (n / m) in single precision falls short of a whole number, and one pixel too early is taken."""
    if mode != "nearest" or 0 in dims:
        return right(x, dims, mode)
    y = rank4(x)
    for axis, extent in enumerate((*dims, *[1] * (4 - len(dims)))[::-1]):
        ratio = np.float32(y.shape[axis]) / np.float32(extent)
        index = np.floor(np.arange(extent, dtype=np.float32) * ratio).astype(int)
        y = np.take(y, np.minimum(index, y.shape[axis] - 1), axis)
    return y.reshape(tuple(dims)[::-1])


@fault(TAILS, ops.softmax, ops.rms_norm, ops.l2_norm, like="L26708")
def reductions_skip_the_tail_of_a_row(right: Kernel, x: Array, *args: Any, **keywords: Any) -> Array:
    """The sum of a row longer than 64 leaves out what is past a multiple of 16."""
    n = x.shape[-1]
    keep = n // 16 * 16
    if n <= 64 or keep == n:
        return right(x, *args, **keywords)
    part, whole = (np.abs(right(a)).max(-1, keepdims=True) for a in (x[..., :keep], x))
    return right(x, *args, **keywords) * np.where((whole > 0) & (part > 0), part / whole, 1)


@fault(TAILS, ops.ssm_conv, like="L20031")
def short_convolutions_assume_4_taps(right: Kernel, x: Array, weight: Array) -> Array:
    """With another number of taps than 4, the first one is left out."""
    if weight.shape[-1] in (1, 4):
        return right(x, weight)
    cut = weight.copy()
    cut[..., 0] = 0
    return right(x, cut)


@fault(TAILS, ops.mulmat, like="L26708")
def a_single_column_repeats_the_last_odd_row(right: Kernel, w: Array, x: Array) -> Array:
    """Products with one column take two rows of the weight at a time; the last of an odd number is the one before."""
    y = right(w, x)
    if rank4(x).shape[2] == 1 and y.shape[-1] % 2 and y.shape[-1] > 1:
        y[..., -1] = y[..., -2]
    return y


@fault(TAILS, ops.mulmat, like="L15592")
def long_rows_lose_what_is_past_a_multiple_of_64(right: Kernel, w: Array, x: Array) -> Array:
    """Above 512 elements a kernel for whole tiles runs, and what is behind the last tile is left out."""
    kept = w.shape[-1] // 64 * 64 if w.shape[-1] > 512 else w.shape[-1]
    return right(w[..., :kept], x[..., :kept])
