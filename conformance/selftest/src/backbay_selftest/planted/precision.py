"""Sums and products in fewer bits than the backend declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import DType, KernelBackend, Node, ops

from ..faults import Array, Kernel, Right, bfloat16, fault, rounded, significand
from ..fused import rank4

PRECISION = "low-precision accumulation, overflow"


@fault(PRECISION, ops.mulmat, ops.mulmat_full_prec, like="L13607")
def mulmat_sums_in_half_precision(right: Kernel, w: Array, x: Array) -> Array:
    """Blocks of 32 products are summed in f16, which overflows at 65504 and keeps 11 bits."""
    w, x = rank4(w), rank4(x)
    y: Any = np.zeros(1)
    for k in range(0, max(w.shape[-1], 1), 32):
        y = rounded(y + right(w[..., k : k + 32], x[..., k : k + 32]), np.float16)
    return np.asarray(y)


@fault(PRECISION, ops.mulmat, like="L17746")
def mulmat_rounds_activations_to_bfloat16(right: Kernel, w: Array, x: Array) -> Array:
    """Activations lose all but 8 bits, and the declared precision does not say so."""
    return right(w, bfloat16(x))


@fault(PRECISION, ops.mulmat, ops.mulmat_full_prec, ops.conv2d, like="T192212")
def products_take_10_bits_of_each_input(right: Kernel, w: Array, x: Array, *args: Any) -> Array:
    """Matrix units with TF32 inputs are used without a word."""
    return right(significand(w, 11), significand(x, 11), *args)


@fault(PRECISION, ops.mulmat_full_prec, like="L13607")
def full_precision_is_asked_for_in_vain(right: Kernel, w: Array, x: Array) -> Array:
    """mulmat_full_prec runs the fast product, whose result is rounded to f16."""
    return rounded(right(w, x), np.float16)


@fault(PRECISION, ops.mulmat, like="L13607")
def mulmat_rounds_its_result_to_bfloat16(right: Kernel, w: Array, x: Array) -> Array:
    """The product is stored in 8 bits of significand."""
    return bfloat16(right(w, x))


@fault(PRECISION, ops.mulmat, like="L13607")
def mulmat_is_off_by_a_thousandth(right: Kernel, w: Array, x: Array) -> Array:
    """All results are 1.001 times what they should be, as after a wrong scale of a format."""
    return right(w, x) * 1.001


@fault(PRECISION, ops.softmax, like="L17746")
def softmax_is_off_by_a_thousandth(right: Kernel, x: Array) -> Array:
    """Rows add up to 1.001."""
    return right(x) * 1.001


@fault(PRECISION, ops.softmax, like="O4129")
def softmax_exponentials_overflow(right: Kernel, x: Array) -> Array:
    """The largest of a row is not subtracted first, so rows with an 89 in them are not numbers."""
    powers = np.exp(x.astype(np.float32))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


@fault(PRECISION, ops.softmax, like="L17746")
def softmax_sums_in_half_precision(right: Kernel, x: Array) -> Array:
    """The denominator is kept in f16, and so is off by up to a two-thousandth."""
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(x - top)
    return np.asarray(powers / rounded(powers.sum(axis=-1, keepdims=True), np.float16))


@fault(PRECISION, ops.rms_norm, like="L17746")
def squares_of_rms_norm_overflow_half_precision(
    right: Kernel, x: Array, weight: Array | None = None, eps: float = 1e-5
) -> Array:
    """Squares are taken in f16: above 255 they are infinite, below 2^-12 they are 0."""
    mean = rounded(x * x, np.float16).sum(-1, keepdims=True) / np.float64(x.shape[-1])
    y = x / np.sqrt(mean + eps)
    return np.asarray(y if weight is None else y * weight.reshape(-1))


@fault(PRECISION, ops.variance, ops.stddev, like="T192212")
def variance_cancels(right: Kernel, x: Array) -> Array:
    """The square of the mean is taken from the mean of the squares, in single precision."""
    single = x.astype(np.float32)
    n = np.float32(x.shape[-1])
    mean = single.sum(-1, keepdims=True) / n
    found = (single * single).sum(-1, keepdims=True) / n - mean * mean
    root = right.__name__ == "stddev"
    return np.asarray(np.sqrt(np.maximum(found, 0)) if root else found)


@fault(PRECISION, ops.sum_rows, ops.mean, like="L13607")
def sums_are_kept_in_half_precision(right: Kernel, x: Array) -> Array:
    """Sums above 2048 lose their units."""
    return rounded(right(x), np.float16)


@fault(PRECISION, ops.cumsum, like="T192212")
def cumsum_carries_a_bfloat16(right: Kernel, x: Array) -> Array:
    """What is carried from one block of 64 to the next has 8 bits."""
    y = right(x)
    for start in range(64, x.shape[-1], 64):
        carried = y[..., start - 1 : start]
        y[..., start:] += bfloat16(carried) - carried
    return y


@fault(PRECISION, ops.scaled_dot_product_attention, like="L17746")
def attention_scores_are_kept_in_half_precision(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """Query times key is rounded to f16 before the softmax."""
    return right(*args, change_scores=lambda scores: rounded(scores, np.float16), **keywords)


@fault(PRECISION, ops.exp, like="L17746")
def exp_has_12_bits(right: Kernel, x: Array) -> Array:
    """The device's fast exponential is used, with 12 good bits."""
    return significand(right(x), 12)


@fault(PRECISION, ops.layer_norm, like="T192212")
def layer_norm_takes_its_mean_in_half_precision(
    right: Kernel, x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """The mean is rounded to f16 before it is subtracted."""
    mean = x.sum(-1, keepdims=True) / np.float64(x.shape[-1])
    off = rounded(mean, np.float16) - mean
    y = right(x, None, None, eps)
    spread = np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / np.float64(x.shape[-1]) + eps)
    y = y - off / spread
    y = y if weight is None else y * weight.reshape(-1)
    return np.asarray(y if bias is None else y + bias.reshape(-1))


@fault(PRECISION, "run_node", like="L13607")
def sums_of_half_rows_overflow_on_their_way(
    right: Right, _: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """A row of f16 is infinite once a part of its sum is above 65504, also where the rest takes it back."""
    right(node, arrays)
    if node.op is ops.sum_rows and node.dtype is DType.F16 and node.args[0].size:
        parts = arrays[node.args[0].index].astype(np.float64).cumsum(-1)
        over = (np.abs(parts) > 65504).any(-1, keepdims=True)
        arrays[node.index][over] = np.inf


@fault(PRECISION, ops.variance, ops.stddev, like="L26708")
def spread_is_taken_from_the_squares(right: Kernel, x: Array) -> Array:
    """The mean of squares less the square of the mean, both in single precision."""
    numbers = x.astype(np.float32)
    if not numbers.shape[-1]:
        return right(x)
    squares, mean = np.mean(numbers * numbers, -1, keepdims=True), np.mean(numbers, -1, keepdims=True)
    spread = np.maximum(squares - mean * mean, 0)
    return np.asarray(spread if right.__name__ == "variance" else np.sqrt(spread))
