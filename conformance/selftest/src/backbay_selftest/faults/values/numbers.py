"""Accumulation in too low a precision; infinities, NaN, signed zeros and fully masked rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backbay import DType, ops

from ...fault import FaultKind, InterceptedCall, Result, altered, bfloat16, fault, float16, named, significand
from ...fused import Array, exponentials, rank4, scaled


@fault(FaultKind.PRECISION, ops.mulmat, ops.mulmat_full_prec)
def mulmat_sums_in_half_precision(call: InterceptedCall) -> Result:
    """Blocks of 32 products are summed in f16, which overflows at 65504 and keeps 11 bits."""
    w, x = rank4(call.w), rank4(call.x)
    y: Array = np.zeros(1)
    for k in range(0, max(w.shape[-1], 1), 32):
        y = float16(y + call.right(w=w[..., k : k + 32], x=x[..., k : k + 32]))
    return y


@fault(FaultKind.PRECISION, ops.mulmat)
def mulmat_rounds_activations_to_bfloat16(call: InterceptedCall) -> Result:
    """Activations keep 8 bits, and the declared precision claims more."""
    return call.right(x=bfloat16(call.x))


@fault(FaultKind.PRECISION, ops.mulmat, ops.mulmat_full_prec, ops.conv2d)
def products_take_10_bits_of_each_input(call: InterceptedCall) -> Result:
    """Matrix units round inputs to TF32, and the declared precision claims more."""
    inputs = ("weight", "data") if call.name == "conv2d" else ("w", "x")
    return call.right(**{name: significand(getattr(call, name), 11) for name in inputs})


altered("mulmat_rounds_its_result_to_bfloat16", FaultKind.PRECISION, ops.mulmat, result=bfloat16)
altered("full_precision_is_asked_for_in_vain", FaultKind.PRECISION, ops.mulmat_full_prec, result=float16)
altered("sums_are_kept_in_half_precision", FaultKind.PRECISION, ops.sum_rows, ops.mean, result=float16)
altered("mulmat_is_off_by_a_thousandth", FaultKind.PRECISION, ops.mulmat, result=lambda y: y * 1.001)
altered("softmax_is_off_by_a_thousandth", FaultKind.PRECISION, ops.softmax, result=lambda y: y * 1.001)
altered("exp_has_12_bits", FaultKind.PRECISION, ops.exp, result=lambda y: significand(y, 12))


@fault(FaultKind.PRECISION, ops.softmax)
def softmax_exponentials_overflow(call: InterceptedCall) -> Result:
    """The largest element of a row is not subtracted first, so rows with an 89 overflow."""
    powers = np.exp(call.x.astype(np.float32))
    return powers / powers.sum(axis=-1, keepdims=True)


@fault(FaultKind.PRECISION, ops.softmax)
def softmax_sums_in_half_precision(call: InterceptedCall) -> Result:
    """The denominator is kept in f16, and so is off by up to a two-thousandth."""
    powers = exponentials(call.x)
    return powers / float16(powers.sum(axis=-1, keepdims=True))


@fault(FaultKind.PRECISION, ops.rms_norm)
def squares_of_rms_norm_overflow_half_precision(call: InterceptedCall) -> Result:
    """Squares are taken in f16: above 255 they are infinite, below 2^-12 they are 0."""
    mean = float16(call.x * call.x).sum(-1, keepdims=True) / np.float64(call.x.shape[-1])
    return scaled(call.x / np.sqrt(mean + call.eps), call.weight)


def squares_less_square(x: Array) -> Array:
    """The mean of the squares less the square of the mean, in single precision."""
    single, n = x.astype(np.float32), np.float32(x.shape[-1])
    mean = single.sum(-1, keepdims=True) / n
    return np.asarray((single * single).sum(-1, keepdims=True) / n - mean * mean)


@fault(FaultKind.PRECISION, ops.variance, ops.stddev)
def variance_cancels(call: InterceptedCall) -> Result:
    """The variance is the mean of the squares less the square of the mean, in single precision."""
    found = squares_less_square(call.x)
    return np.sqrt(np.maximum(found, 0)) if call.name == "stddev" else found


@fault(FaultKind.PRECISION, ops.cumsum)
def cumsum_carries_a_bfloat16(call: InterceptedCall) -> Result:
    """The sum carried from one block of 64 to the next has 8 bits."""
    y = call.right()
    for start in range(64, call.x.shape[-1], 64):
        carried = y[..., start - 1 : start]
        y[..., start:] += bfloat16(carried) - carried
    return y


@fault(FaultKind.PRECISION, ops.scaled_dot_product_attention)
def attention_scores_are_kept_in_half_precision(call: InterceptedCall) -> Result:
    return call.right(change_scores=float16)


@fault(FaultKind.PRECISION, ops.layer_norm)
def layer_norm_takes_its_mean_in_half_precision(call: InterceptedCall) -> Result:
    x, n = call.x, np.float64(call.x.shape[-1])
    mean = x.sum(-1, keepdims=True) / n
    spread = np.sqrt(((x - mean) ** 2).sum(-1, keepdims=True) / n + call.eps)
    off = (float16(mean) - mean) / spread
    return scaled(call.right(weight=None, bias=None) - off, call.weight, call.bias)


@fault(FaultKind.PRECISION, "run_node")
def sums_of_half_rows_overflow_on_their_way(call: InterceptedCall) -> Result:
    """A sum over f16 is infinite if a partial sum exceeds 65504, even if the whole sum does not."""
    node = call.node
    call.right()
    if node.op is ops.sum_rows and node.dtype is DType.F16 and node.args[0].size:
        parts = call.arrays[node.args[0].index].astype(np.float64).cumsum(-1)
        over = (np.abs(parts) > 65504).any(-1, keepdims=True)
        call.arrays[node.index][over] = np.inf


@fault(FaultKind.PRECISION, ops.variance, ops.stddev)
def spread_is_taken_from_the_squares(call: InterceptedCall) -> Result:
    """The variance is that of `variance_cancels`, clamped at 0."""
    if not call.x.shape[-1]:
        return call.right()
    spread = np.maximum(squares_less_square(call.x), 0)
    return spread if call.name == "variance" else np.sqrt(spread)


@fault(FaultKind.PRECISION, "run_node")
def norms_of_halves_square_in_halves(call: InterceptedCall) -> Result:
    """Squares of f16 operands are taken in f16, and rows with one past its range give 0."""
    call.right()
    node = call.node
    if node.op in named("rms_norm", "l2_norm") and node.dtype is DType.F16 and node.size:
        squares = float16(np.square(call.arrays[node.args[0].index].astype(np.float32)))
        y = call.arrays[node.index]
        y[...] = np.where(np.isinf(squares).any(-1, keepdims=True), 0, y)


@fault(FaultKind.PRECISION, ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
def products_clip_their_activations(call: InterceptedCall) -> Result:
    """Activations end where f16 ends, and the declared precision claims more."""
    return call.right(x=np.clip(call.x, -65504, 65504))


def spoiled(y: Array, dead: Callable[..., Array], step: int) -> Array:
    """y with NaN in the rows at a distance of `step` from dead ones; `dead` is all or any, of NaN in a row."""
    if not y.size:
        return y
    rows = np.array(y).reshape(-1, y.shape[-1])
    hit = np.flatnonzero(dead(np.isnan(rows), -1)) + step
    rows[hit[(hit >= 0) & (hit < len(rows))]] = np.nan
    return rows.reshape(y.shape)


@fault(FaultKind.SPECIAL, ops.softmax)
def softmax_takes_minus_infinity_for_a_number(call: InterceptedCall) -> Result:
    """-infinity becomes -10000, so that a fully masked row is uniform instead of NaN."""
    return call.right(x=np.where(np.isneginf(call.x), -1e4, call.x))


@fault(FaultKind.SPECIAL, ops.softmax)
def a_masked_row_poisons_the_next(call: InterceptedCall) -> Result:
    """The NaN of a fully masked row stays in the accumulator of the row after it."""
    return spoiled(call.right(), np.all, 1)


@fault(FaultKind.SPECIAL, ops.scaled_dot_product_attention)
def a_masked_row_of_attention_spoils_the_others(call: InterceptedCall) -> Result:
    """One fully masked row makes all rows of its head NaN."""

    def spoil(weights: Array) -> Array:
        dead = np.any(np.all(np.isnan(weights), axis=-1, keepdims=True), axis=-2, keepdims=True)
        return np.where(dead, np.nan, weights)

    return call.right(change_weights=spoil)


@fault(FaultKind.SPECIAL, ops.scaled_dot_product_attention)
def a_mask_of_minus_infinity_is_only_large(call: InterceptedCall) -> Result:
    """-infinity in the mask becomes -20, so that masked positions still count a little."""
    return call.right(change_mask=lambda mask: np.maximum(mask, -20))


@fault(FaultKind.SPECIAL, ops.sigmoid, ops.silu)
def sigmoid_overflows_for_large_arguments(call: InterceptedCall) -> Result:
    """e^x / (1 + e^x) in single precision is NaN from x = 89 on."""
    return np.where(call.x.astype(np.float32) > 88.7, np.nan, call.right())


@fault(FaultKind.SPECIAL, ops.tanh)
def tanh_of_large_arguments_is_nan(call: InterceptedCall) -> Result:
    """tanh is computed as (e^2x - 1) / (e^2x + 1), which overflows."""
    powers = np.exp(2 * call.x.astype(np.float32))
    return (powers - 1) / (powers + 1)


@fault(FaultKind.SPECIAL, ops.gelu)
def gelu_of_large_arguments_is_nan(call: InterceptedCall) -> Result:
    """The tanh inside is taken from exponentials, which overflow where x is above 10."""
    powers = np.exp(2 * (0.7978845608 * call.x * (1 + 0.044715 * call.x * call.x)).astype(np.float32))
    return np.where(np.isfinite(powers), call.right(), np.nan)


@fault(FaultKind.SPECIAL, ops.softplus)
def softplus_overflows(call: InterceptedCall) -> Result:
    """log(1 + e^x) is computed literally, in single precision."""
    return np.log(1 + np.exp(call.x.astype(np.float32)))


@fault(FaultKind.SPECIAL, ops.sum_rows, ops.mean, ops.cumsum)
def sums_skip_nan(call: InterceptedCall) -> Result:
    return call.right(x=np.where(np.isnan(call.x), 0, call.x))


@fault(FaultKind.SPECIAL, ops.mul)
def zero_times_anything_is_zero(call: InterceptedCall) -> Result:
    """A zero in the first operand skips the multiplication, also by infinity or NaN."""
    return np.where(call.x == 0, 0, call.right())


@fault(FaultKind.SPECIAL, ops.neg)
def neg_subtracts_from_zero(call: InterceptedCall) -> Result:
    """0 - 0 is +0: the sign of a zero is lost."""
    return 0 - call.x


@fault(FaultKind.SPECIAL, ops.sqrt)
def sqrt_of_negative_numbers_is_zero(call: InterceptedCall) -> Result:
    return np.sqrt(np.where(call.x < 0, 0, call.x))


@fault(FaultKind.SPECIAL, ops.div)
def division_by_zero_is_guarded(call: InterceptedCall) -> Result:
    """A zero divisor counts as the smallest normal number."""
    return call.right(t2=np.where(call.t2 == 0, np.finfo(np.float32).tiny, call.t2))


@fault(FaultKind.SPECIAL, ops.tri)
def tri_multiplies_with_zeros(call: InterceptedCall) -> Result:
    """Elements outside of the triangle are multiplied with 0, which keeps NaN."""
    return call.x * call.right(x=np.ones_like(call.x))


@fault(FaultKind.SPECIAL, ops.layer_norm, ops.rms_norm)
def one_bad_row_of_a_norm_spoils_all(call: InterceptedCall) -> Result:
    """NaN in one row reaches the row before it through a shared reduction."""
    return spoiled(call.right(), np.any, -1)


@fault(FaultKind.SPECIAL, ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
def products_take_nan_in_a_weight_for_zero(call: InterceptedCall) -> Result:
    """Weights pass through a conversion that turns NaN into 0, which hides a broken model."""
    return call.right(w=np.where(np.isnan(call.w), 0, call.w))


@fault(FaultKind.SPECIAL, ops.scaled_dot_product_attention)
def attention_gives_the_mean_where_all_is_masked(call: InterceptedCall) -> Result:
    """-infinity in the mask becomes the lowest f16 number, which shows in fully masked rows."""
    return call.right(change_mask=lambda mask: np.maximum(mask, -65504))


@fault(FaultKind.SPECIAL, ops.silu, ops.gelu, ops.sigmoid, ops.exp)
def activations_clamp_their_argument(call: InterceptedCall) -> Result:
    """Arguments are clamped to 80 for the polynomial, infinities too."""
    return call.right(x=np.where(np.isinf(call.x), np.clip(call.x, -80, 80), call.x))


@fault(FaultKind.SPECIAL, ops.solve_tri)
def solving_multiplies_with_what_it_must_not_read(call: InterceptedCall) -> Result:
    """The other triangle is multiplied with 0 and added, which keeps NaN."""
    y = call.right()
    if not call.left or call.a.ndim < 2:
        return y
    other = np.triu(np.ones(call.a.shape[-2:]), 1) if call.lower else np.tril(np.ones(call.a.shape[-2:]), -1)
    return y + (call.a * 0 * other).sum(-1, keepdims=True).reshape(*y.shape[:-1], 1)


@fault(FaultKind.SPECIAL, "run_node")
def a_nan_of_all_ones_is_rounded_as_a_number(call: InterceptedCall) -> Result:
    """f32 becomes bf16 by an addition and a shift, which turn the NaN with all bits set into 0."""
    call.right()
    node = call.node
    if node.op is ops.cast and node.dtype is DType.BF16 and node.args[0].dtype is DType.F32:
        bits = np.ascontiguousarray(call.arrays[node.args[0].index]).view(np.uint32)
        y = call.arrays[node.index]
        y[...] = np.where(bits.reshape(y.shape) & 0x7FFFFFFF == 0x7FFFFFFF, np.zeros((), y.dtype), y)
