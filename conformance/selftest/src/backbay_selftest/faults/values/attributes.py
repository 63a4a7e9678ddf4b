"""Attributes that are ignored, swapped or mixed up, positions among them, and the order of a sort."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...fault import FaultKind, InterceptedCall, Result, altered, fault
from ...fused import scaled

altered("rms_norm_ignores_its_eps", FaultKind.SCALARS, ops.rms_norm, eps=1e-6)
altered("softcap_is_ignored", FaultKind.SCALARS, ops.scaled_dot_product_attention, softcap=0.0)
altered("sinks_are_ignored", FaultKind.SCALARS, ops.scaled_dot_product_attention, sinks=None)
altered("clamp_has_only_an_upper_bound", FaultKind.SCALARS, ops.clamp, min=-np.inf)
altered("alpha_of_swiglu_is_fixed", FaultKind.SCALARS, ops.swiglu, alpha=1.702)
altered("the_base_of_rope_is_fixed", FaultKind.SCALARS, ops.rope, base=10000.0)
altered("solving_ignores_unit_diagonal", FaultKind.SCALARS, ops.solve_tri, unit_diagonal=False)


@fault(FaultKind.SCALARS, ops.layer_norm)
def layer_norm_adds_eps_after_the_root(call: InterceptedCall) -> Result:
    n = np.float64(call.x.shape[-1])
    centred = call.x - call.x.sum(-1, keepdims=True) / n
    spread = np.sqrt((centred**2).sum(-1, keepdims=True) / n)
    return scaled(centred / (spread + call.eps), call.weight, call.bias)


@fault(FaultKind.SCALARS, ops.l2_norm)
def l2_norm_adds_its_eps(call: InterceptedCall) -> Result:
    """eps is added under the root, instead of being the least divisor."""
    return call.x / np.sqrt((call.x**2).sum(-1, keepdims=True) + call.eps)


@fault(FaultKind.SCALARS, ops.scaled_dot_product_attention)
def the_cap_comes_before_the_scale(call: InterceptedCall) -> Result:
    return call.right(softcap=call.softcap * abs(call.scale) or call.softcap)


@fault(FaultKind.SCALARS, ops.scale)
def scale_is_rounded_to_half_precision(call: InterceptedCall) -> Result:
    return call.right(s=float(np.float16(call.s)))


@fault(FaultKind.SCALARS, ops.conv2d, ops.im2col)
def strides_of_convolutions_are_swapped(call: InterceptedCall) -> Result:
    """Where the shape allows it, the vertical stride serves both directions."""
    if call.s0 == call.s1:
        return call.right()
    y = call.right()
    other = call.right(s0=1)
    axis = y.ndim - 1 if call.name == "conv2d" else y.ndim - 2
    index = np.minimum(np.arange(y.shape[axis]) * call.s1, other.shape[axis] - 1)
    return np.take(other, index, axis)


@fault(FaultKind.SCALARS, ops.conv2d, ops.conv1d_dw)
def dilation_is_ignored(call: InterceptedCall) -> Result:
    plain = call.right(d=1) if call.name == "conv1d_dw" else call.right(d0=1, d1=1)
    return plain[tuple(slice(0, n) for n in call.right().shape)]


@fault(FaultKind.SCALARS, ops.pad_ext)
def padding_before_and_behind_is_swapped(call: InterceptedCall) -> Result:
    sides = {f"{side}p{n}": getattr(call, f"{other}p{n}") for side, other in ("lr", "rl") for n in range(4)}
    return call.right(**sides)


@fault(FaultKind.SCALARS, ops.swiglu)
def swiglu_limits_its_gate_from_below(call: InterceptedCall) -> Result:
    """The gate is clamped on both sides."""
    return call.right(x=np.maximum(call.x, -call.limit))


@fault(FaultKind.SCALARS, ops.variance)
def variance_divides_by_one_less(call: InterceptedCall) -> Result:
    """The divisor is N - 1."""
    n = call.x.shape[-1]
    return call.right() * (n / (n - 1) if n > 1 else 1)


@fault(FaultKind.SCALARS, ops.concat)
def concat_along_the_outer_axes_swaps_its_operands(call: InterceptedCall) -> Result:
    swapped = call.dim >= 2 and call.x.shape == call.t2.shape
    return call.right(x=call.t2, t2=call.x) if swapped else call.right()


@fault(FaultKind.SCALARS, ops.interpolate)
def bilinear_takes_corners_for_centres(call: InterceptedCall) -> Result:
    """Pixels are aligned at their corners in dimension 0, i*n/m instead of (i + 0.5)*n/m - 0.5."""
    x = call.x
    if call.mode != "bilinear" or 0 in call.dims or not x.ndim or call.dims[0] == x.shape[-1]:
        return call.right()
    n, m = x.shape[-1], call.dims[0]
    t = np.minimum(np.arange(m) * n / m, n - 1)
    low = np.floor(t).astype(int)
    wide = x[..., low] * (1 - (t - low)) + x[..., np.minimum(low + 1, n - 1)] * (t - low)
    return call.right(x=wide)


@fault(FaultKind.SCALARS, ops.conv2d)
def paddings_of_the_usual_convolution_are_swapped(call: InterceptedCall) -> Result:
    """Kernels of 3x3 without strides have code of their own, in which the paddings of width and height are swapped."""
    y = call.right()
    usual = call.weight.shape[-2:] == (3, 3) and {call.s0, call.s1, call.d0, call.d1} == {1}
    if not usual or call.p0 == call.p1:
        return y
    swapped, wrong = call.right(p0=call.p1, p1=call.p0), np.zeros_like(y)
    both = tuple(slice(0, min(sides)) for sides in zip(y.shape, swapped.shape, strict=True))
    wrong[both] = swapped[both]
    return wrong


@fault(FaultKind.ROPE, ops.rope)
def partial_rope_clears_the_rest(call: InterceptedCall) -> Result:
    """Elements from dim on become 0 instead of being copied."""
    y = np.array(call.right())
    if call.mode != "vision":
        y[..., call.dim :] = 0
    return y


@fault(FaultKind.ROPE, ops.rope)
def partial_neox_pairs_across_the_whole_head(call: InterceptedCall) -> Result:
    """Element i is paired with i + head_dim/2, also where only dim elements turn."""
    dim = call.dim
    half = call.x.shape[-1] // 2
    if call.mode != "neox" or dim == call.x.shape[-1]:
        return call.right()
    order = np.argsort(np.arange(2 * half) % half >= dim // 2, kind="stable")  # turned elements first
    return call.right(x=call.x[..., order])[..., np.argsort(order)]


@fault(FaultKind.ROPE, ops.rope)
def frequencies_of_partial_rope_come_from_the_head(call: InterceptedCall) -> Result:
    """The powers of base divide by head_dim instead of dim."""
    exponent = call.dim / call.x.shape[-1] if call.mode in ("normal", "neox") else 1
    return call.right(base=call.base**exponent)


@fault(FaultKind.ROPE, ops.rope)
def negative_positions_count_as_zero(call: InterceptedCall) -> Result:
    return call.right(positions=np.maximum(call.positions, 0))


@fault(FaultKind.ROPE, ops.rope)
def positions_are_kept_in_half_precision(call: InterceptedCall) -> Result:
    return call.right(positions=call.positions.astype(np.float16).astype(np.float64))


@fault(FaultKind.ROPE, ops.rope)
def neox_ignores_frequency_factors(call: InterceptedCall) -> Result:
    return call.right(factors=None if call.mode == "neox" else call.factors)


@fault(FaultKind.ROPE, ops.rope)
def frequency_factors_multiply(call: InterceptedCall) -> Result:
    return call.right(factors=None if call.factors is None else 1 / call.factors)


@fault(FaultKind.ROPE, ops.rope)
def sections_do_not_repeat(call: InterceptedCall) -> Result:
    """In multi-section mode, pairs beyond all sections take the first component."""
    total = sum(call.sections)
    if call.mode == "multi-section" and 0 < total < call.dim // 2:
        beyond = call.dim // 2 - total
        parts = call.positions.reshape(4, -1)
        first = call.right(positions=np.tile(parts[0], 4))
        y = np.array(call.right())
        for start in (total, call.dim // 2 + total):
            y[..., start : start + beyond] = first[..., start : start + beyond]
        return y
    return call.right()


@fault(FaultKind.ROPE, ops.rope)
def yarn_stretches_by_the_head(call: InterceptedCall) -> Result:
    """The factor of yarn also multiplies the elements that are only copied."""
    y = np.array(call.right())
    if call.yarn is not None and call.mode != "vision":
        y[..., call.dim :] *= call.yarn.attn_factor
    return y


@fault(FaultKind.ROPE, ops.rope)
def vision_powers_run_on(call: InterceptedCall) -> Result:
    """The second section of vision does not restart its powers of base."""
    if call.mode != "vision" or not call.sections[0] or call.factors is not None:
        return call.right()
    first, dim = call.sections[0], call.dim
    return call.right(factors=np.where(np.arange(dim) >= first, call.base ** (2 * first / dim), 1.0))


@fault(FaultKind.ROPE, ops.rope)
def turning_back_turns_forth(call: InterceptedCall) -> Result:
    """The sign of scale is dropped."""
    return call.right(scale=abs(call.scale))


@fault(FaultKind.ROPE, ops.rope)
def all_tokens_beyond_the_first_batch_reuse_its_table(call: InterceptedCall) -> Result:
    """Sines are kept for 16 tokens, and token 16 takes the sines of token 0."""
    positions = call.positions
    if positions.size == (call.x.shape[-3] if call.x.ndim > 2 else 1) > 16:
        positions = positions.reshape(-1)[np.arange(positions.size) % 16].reshape(positions.shape)
    return call.right(positions=positions)


@fault(FaultKind.ORDER, ops.argsort)
def argsort_sorts_blocks_of_256(call: InterceptedCall) -> Result:
    y = call.right()
    for start in range(0, call.x.shape[-1] if call.x.shape[-1] > 256 else 0, 256):
        y[..., start : start + 256] = call.right(x=call.x[..., start : start + 256]) + start
    return y


@fault(FaultKind.ORDER, ops.argsort)
def padding_of_a_bitonic_sort_takes_part(call: InterceptedCall) -> Result:
    """Rows are padded with the largest finite number, which sorts before infinities in the data."""
    n = call.x.shape[-1]
    padded = 1 << max(n - 1, 0).bit_length()
    fill = np.full((*call.x.shape[:-1], padded - n), np.finfo(np.float32).max)
    return np.minimum(call.right(x=np.concatenate([call.x, fill], -1))[..., :n], max(n - 1, 0))


@fault(FaultKind.ORDER, ops.top_k)
def ties_of_top_k_give_one_position_twice(call: InterceptedCall) -> Result:
    """Positions are found by value, so equal values all give the first position."""
    y = call.right()
    values = np.take_along_axis(call.x, y, -1)
    for i in range(1, y.shape[-1]):
        y[..., i] = np.where(values[..., i] == values[..., i - 1], y[..., i - 1], y[..., i])
    return y


@fault(FaultKind.ORDER, ops.top_k)
def top_k_keeps_64_candidates(call: InterceptedCall) -> Result:
    """From the 65th position on, the positions start again from the first."""
    y = call.right()
    y[..., 64:] = y[..., : max(0, y.shape[-1] - 64)][..., : max(0, call.k - 64)]
    return y


@fault(FaultKind.ORDER, ops.top_k)
def top_k_of_negative_rows_starts_from_zero(call: InterceptedCall) -> Result:
    """The running maximum starts at 0, so a negative row gives its first positions."""
    first = np.broadcast_to(np.arange(call.k), (*call.x.shape[:-1], call.k))
    return np.where((call.x < 0).all(-1, keepdims=True), first, call.right())


@fault(FaultKind.ORDER, ops.argsort, ops.top_k)
def sorting_compares_in_half_precision(call: InterceptedCall) -> Result:
    """Numbers that are equal as f16 stay in the order in which they came."""
    return call.right(x=call.x.astype(np.float16).astype(call.x.dtype))


@fault(FaultKind.ORDER, ops.argsort)
def the_last_of_an_odd_row_is_not_sorted(call: InterceptedCall) -> Result:
    """Rows of odd length above 32 are sorted without their last element, which stays last."""
    n = call.x.shape[-1]
    if n % 2 == 0 or n <= 32:
        return call.right()
    last = np.full((*call.x.shape[:-1], 1), n - 1)
    return np.concatenate([call.right(x=call.x[..., : n - 1]), last], -1)


@fault(FaultKind.ORDER, ops.top_k)
def nan_makes_top_k_repeat_a_position(call: InterceptedCall) -> Result:
    """A row with NaN gives its first position again and again."""
    return np.where(np.isnan(call.x).any(-1, keepdims=True), 0, call.right())
