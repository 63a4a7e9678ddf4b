"""Sums and products in fewer bits than the backend declares."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops

from ...faults import BoundCall, Kind, Result, altered, bfloat16, fault, float16, named, significand
from ...fused import Array, exponentials, rank4, scaled


@fault(Kind.PRECISION, ops.mulmat, ops.mulmat_full_prec)
def mulmat_sums_in_half_precision(call: BoundCall) -> Result:
    """Blocks of 32 products are summed in f16, which overflows at 65504 and keeps 11 bits."""
    w, x = rank4(call.w), rank4(call.x)
    y: Array = np.zeros(1)
    for k in range(0, max(w.shape[-1], 1), 32):
        y = float16(y + call.right(w=w[..., k : k + 32], x=x[..., k : k + 32]))
    return y


@fault(Kind.PRECISION, ops.mulmat)
def mulmat_rounds_activations_to_bfloat16(call: BoundCall) -> Result:
    """Activations keep 8 bits, and the declared precision claims more."""
    return call.right(x=bfloat16(call.x))


@fault(Kind.PRECISION, ops.mulmat, ops.mulmat_full_prec, ops.conv2d)
def products_take_10_bits_of_each_input(call: BoundCall) -> Result:
    """Matrix units round inputs to TF32, and the declared precision claims more."""
    inputs = ("weight", "data") if call.name == "conv2d" else ("w", "x")
    return call.right(**{name: significand(getattr(call, name), 11) for name in inputs})


altered("mulmat_rounds_its_result_to_bfloat16", Kind.PRECISION, ops.mulmat, result=bfloat16)
altered("full_precision_is_asked_for_in_vain", Kind.PRECISION, ops.mulmat_full_prec, result=float16)
altered("sums_are_kept_in_half_precision", Kind.PRECISION, ops.sum_rows, ops.mean, result=float16)
altered("mulmat_is_off_by_a_thousandth", Kind.PRECISION, ops.mulmat, result=lambda y: y * 1.001)
altered("softmax_is_off_by_a_thousandth", Kind.PRECISION, ops.softmax, result=lambda y: y * 1.001)
altered("exp_has_12_bits", Kind.PRECISION, ops.exp, result=lambda y: significand(y, 12))


@fault(Kind.PRECISION, ops.softmax)
def softmax_exponentials_overflow(call: BoundCall) -> Result:
    """The largest element of a row is not subtracted first, so rows with an 89 overflow."""
    powers = np.exp(call.x.astype(np.float32))
    return powers / powers.sum(axis=-1, keepdims=True)


@fault(Kind.PRECISION, ops.softmax)
def softmax_sums_in_half_precision(call: BoundCall) -> Result:
    """The denominator is kept in f16, and so is off by up to a two-thousandth."""
    powers = exponentials(call.x)
    return powers / float16(powers.sum(axis=-1, keepdims=True))


@fault(Kind.PRECISION, ops.rms_norm)
def squares_of_rms_norm_overflow_half_precision(call: BoundCall) -> Result:
    """Squares are taken in f16: above 255 they are infinite, below 2^-12 they are 0."""
    mean = float16(call.x * call.x).sum(-1, keepdims=True) / np.float64(call.x.shape[-1])
    return scaled(call.x / np.sqrt(mean + call.eps), call.weight)


def squares_less_square(x: Array) -> Array:
    """The mean of the squares less the square of the mean, in single precision."""
    single, n = x.astype(np.float32), np.float32(x.shape[-1])
    mean = single.sum(-1, keepdims=True) / n
    return np.asarray((single * single).sum(-1, keepdims=True) / n - mean * mean)


@fault(Kind.PRECISION, ops.variance, ops.stddev)
def variance_cancels(call: BoundCall) -> Result:
    """The variance is the mean of the squares less the square of the mean, in single precision."""
    found = squares_less_square(call.x)
    return np.sqrt(np.maximum(found, 0)) if call.name == "stddev" else found


@fault(Kind.PRECISION, ops.cumsum)
def cumsum_carries_a_bfloat16(call: BoundCall) -> Result:
    """The sum carried from one block of 64 to the next has 8 bits."""
    y = call.right()
    for start in range(64, call.x.shape[-1], 64):
        carried = y[..., start - 1 : start]
        y[..., start:] += bfloat16(carried) - carried
    return y


@fault(Kind.PRECISION, ops.scaled_dot_product_attention)
def attention_scores_are_kept_in_half_precision(call: BoundCall) -> Result:
    return call.right(change_scores=float16)


@fault(Kind.PRECISION, ops.layer_norm)
def layer_norm_takes_its_mean_in_half_precision(call: BoundCall) -> Result:
    x, n = call.x, np.float64(call.x.shape[-1])
    mean = x.sum(-1, keepdims=True) / n
    spread = np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / n + call.eps)
    off = (float16(mean) - mean) / spread
    return scaled(call.right(weight=None, bias=None) - off, call.weight, call.bias)


@fault(Kind.PRECISION, "run_node")
def sums_of_half_rows_overflow_on_their_way(call: BoundCall) -> Result:
    """A sum over f16 is infinite if a partial sum exceeds 65504, even if the whole sum does not."""
    node = call.node
    call.right()
    if node.op is ops.sum_rows and node.dtype is DType.F16 and node.args[0].size:
        parts = call.arrays[node.args[0].index].astype(np.float64).cumsum(-1)
        over = (np.abs(parts) > 65504).any(-1, keepdims=True)
        call.arrays[node.index][over] = np.inf


@fault(Kind.PRECISION, ops.variance, ops.stddev)
def spread_is_taken_from_the_squares(call: BoundCall) -> Result:
    """The variance is that of `variance_cancels`, clamped at 0."""
    if not call.x.shape[-1]:
        return call.right()
    spread = np.maximum(squares_less_square(call.x), 0)
    return spread if call.name == "variance" else np.sqrt(spread)


@fault(Kind.PRECISION, "run_node")
def norms_of_halves_square_in_halves(call: BoundCall) -> Result:
    """Squares of f16 operands are taken in f16, and rows with one past its range give 0."""
    call.right()
    node = call.node
    if node.op in named("rms_norm", "l2_norm") and node.dtype is DType.F16 and node.size:
        squares = float16(np.square(call.arrays[node.args[0].index].astype(np.float32)))
        y = call.arrays[node.index]
        y[...] = np.where(np.isinf(squares).any(-1, keepdims=True), 0, y)


@fault(Kind.PRECISION, ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
def products_clip_their_activations(call: BoundCall) -> Result:
    """Activations end where f16 ends, and the declared precision claims more."""
    return call.right(x=np.clip(call.x, -65504, 65504))
