"""Sums and products in fewer bits than the backend declares."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import DType, ops

from ..faults import BoundCall, bfloat16, fault, rounded, significand
from ..fused import rank4, scaled

PRECISION = "low-precision accumulation, overflow"


@fault(PRECISION, ops.mulmat, ops.mulmat_full_prec, like="L13607")
def mulmat_sums_in_half_precision(call: BoundCall) -> Any:
    """Blocks of 32 products are summed in f16, which overflows at 65504 and keeps 11 bits."""
    w, x = call.w, call.x
    w, x = rank4(w), rank4(x)
    y: Any = np.zeros(1)
    for k in range(0, max(w.shape[-1], 1), 32):
        y = rounded(y + call.right(w=w[..., k : k + 32], x=x[..., k : k + 32]), np.float16)
    return y


@fault(PRECISION, ops.mulmat, like="L17746")
def mulmat_rounds_activations_to_bfloat16(call: BoundCall) -> Any:
    """Activations lose all but 8 bits, and the declared precision does not say so."""
    return call.right(x=bfloat16(call.x))


@fault(PRECISION, ops.mulmat, ops.mulmat_full_prec, ops.conv2d, like="T192212")
def products_take_10_bits_of_each_input(call: BoundCall) -> Any:
    """Matrix units with TF32 inputs are used without a word."""
    inputs = ("weight", "data") if call.name == "conv2d" else ("w", "x")
    return call.right(**{name: significand(getattr(call, name), 11) for name in inputs})


@fault(PRECISION, ops.mulmat_full_prec, like="L13607")
def full_precision_is_asked_for_in_vain(call: BoundCall) -> Any:
    """mulmat_full_prec runs the fast product, whose result is rounded to f16."""
    return rounded(call.right(), np.float16)


@fault(PRECISION, ops.mulmat, like="L13607")
def mulmat_rounds_its_result_to_bfloat16(call: BoundCall) -> Any:
    """The product is stored in 8 bits of significand."""
    return bfloat16(call.right())


@fault(PRECISION, ops.mulmat, like="L13607")
def mulmat_is_off_by_a_thousandth(call: BoundCall) -> Any:
    """All results are 1.001 times what they should be, as after a wrong scale of a format."""
    return call.right() * 1.001


@fault(PRECISION, ops.softmax, like="L17746")
def softmax_is_off_by_a_thousandth(call: BoundCall) -> Any:
    """Rows add up to 1.001."""
    return call.right() * 1.001


@fault(PRECISION, ops.softmax, like="O4129")
def softmax_exponentials_overflow(call: BoundCall) -> Any:
    """The largest of a row is not subtracted first, so rows with an 89 in them are not numbers."""
    powers = np.exp(call.x.astype(np.float32))
    return powers / powers.sum(axis=-1, keepdims=True)


@fault(PRECISION, ops.softmax, like="L17746")
def softmax_sums_in_half_precision(call: BoundCall) -> Any:
    """The denominator is kept in f16, and so is off by up to a two-thousandth."""
    top = call.x.max(axis=-1, keepdims=True, initial=-np.inf)
    powers = np.exp(call.x - top)
    return powers / rounded(powers.sum(axis=-1, keepdims=True), np.float16)


@fault(PRECISION, ops.rms_norm, like="L17746")
def squares_of_rms_norm_overflow_half_precision(call: BoundCall) -> Any:
    """Squares are taken in f16: above 255 they are infinite, below 2^-12 they are 0."""
    mean = rounded(call.x * call.x, np.float16).sum(-1, keepdims=True) / np.float64(call.x.shape[-1])
    return scaled(call.x / np.sqrt(mean + call.eps), call.weight)


@fault(PRECISION, ops.variance, ops.stddev, like="T192212")
def variance_cancels(call: BoundCall) -> Any:
    """The square of the mean is taken from the mean of the squares, in single precision."""
    single, n = call.x.astype(np.float32), np.float32(call.x.shape[-1])
    mean = single.sum(-1, keepdims=True) / n
    found = (single * single).sum(-1, keepdims=True) / n - mean * mean
    return np.sqrt(np.maximum(found, 0)) if call.name == "stddev" else found


@fault(PRECISION, ops.sum_rows, ops.mean, like="L13607")
def sums_are_kept_in_half_precision(call: BoundCall) -> Any:
    """Sums above 2048 lose their units."""
    return rounded(call.right(), np.float16)


@fault(PRECISION, ops.cumsum, like="T192212")
def cumsum_carries_a_bfloat16(call: BoundCall) -> Any:
    """What is carried from one block of 64 to the next has 8 bits."""
    y = call.right()
    for start in range(64, call.x.shape[-1], 64):
        carried = y[..., start - 1 : start]
        y[..., start:] += bfloat16(carried) - carried
    return y


@fault(PRECISION, ops.scaled_dot_product_attention, like="L17746")
def attention_scores_are_kept_in_half_precision(call: BoundCall) -> Any:
    """Query times key is rounded to f16 before the softmax."""
    return call.right(change_scores=lambda scores: rounded(scores, np.float16))


@fault(PRECISION, ops.exp, like="L17746")
def exp_has_12_bits(call: BoundCall) -> Any:
    """The device's fast exponential is used, with 12 good bits."""
    return significand(call.right(), 12)


@fault(PRECISION, ops.layer_norm, like="T192212")
def layer_norm_takes_its_mean_in_half_precision(call: BoundCall) -> Any:
    """The mean is rounded to f16 before it is subtracted."""
    x, n = call.x, np.float64(call.x.shape[-1])
    mean = x.sum(-1, keepdims=True) / n
    spread = np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / n + call.eps)
    off = (rounded(mean, np.float16) - mean) / spread
    return scaled(call.right(weight=None, bias=None) - off, call.weight, call.bias)


@fault(PRECISION, "run_node", like="L13607")
def sums_of_half_rows_overflow_on_their_way(call: BoundCall) -> Any:
    """A row of f16 is infinite once a part of its sum is above 65504, also where the rest takes it back."""
    node = call.node
    call.right()
    if node.op is ops.sum_rows and node.dtype is DType.F16 and node.args[0].size:
        parts = call.arrays[node.args[0].index].astype(np.float64).cumsum(-1)
        over = (np.abs(parts) > 65504).any(-1, keepdims=True)
        call.arrays[node.index][over] = np.inf


@fault(PRECISION, ops.variance, ops.stddev, like="L26708")
def spread_is_taken_from_the_squares(call: BoundCall) -> Any:
    """The mean of squares less the square of the mean, both in single precision."""
    numbers = call.x.astype(np.float32)
    if not numbers.shape[-1]:
        return call.right()
    squares, mean = np.mean(numbers * numbers, -1, keepdims=True), np.mean(numbers, -1, keepdims=True)
    spread = np.maximum(squares - mean * mean, 0)
    return spread if call.name == "variance" else np.sqrt(spread)
