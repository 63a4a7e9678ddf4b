"""Sorting: ties, sizes that are no power of two, and comparisons."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, fault


@fault(Kind.ORDER, ops.argsort)
def argsort_sorts_blocks_of_256(call: BoundCall) -> Result:
    y = call.right()
    for start in range(0, call.x.shape[-1] if call.x.shape[-1] > 256 else 0, 256):
        y[..., start : start + 256] = call.right(x=call.x[..., start : start + 256]) + start
    return y


@fault(Kind.ORDER, ops.argsort)
def padding_of_a_bitonic_sort_takes_part(call: BoundCall) -> Result:
    """Rows are padded with the largest finite number, which sorts before infinities in the data."""
    n = call.x.shape[-1]
    padded = 1 << max(n - 1, 0).bit_length()
    fill = np.full((*call.x.shape[:-1], padded - n), np.finfo(np.float32).max)
    return np.minimum(call.right(x=np.concatenate([call.x, fill], -1))[..., :n], max(n - 1, 0))


@fault(Kind.ORDER, ops.top_k)
def ties_of_top_k_give_one_position_twice(call: BoundCall) -> Result:
    """Positions are found by value, so equal values all give the first position."""
    y = call.right()
    values = np.take_along_axis(call.x, y, -1)
    for i in range(1, y.shape[-1]):
        y[..., i] = np.where(values[..., i] == values[..., i - 1], y[..., i - 1], y[..., i])
    return y


@fault(Kind.ORDER, ops.top_k)
def top_k_keeps_64_candidates(call: BoundCall) -> Result:
    """From the 65th position on, the positions start again from the first."""
    y = call.right()
    y[..., 64:] = y[..., : max(0, y.shape[-1] - 64)][..., : max(0, call.k - 64)]
    return y


@fault(Kind.ORDER, ops.top_k)
def top_k_of_negative_rows_starts_from_zero(call: BoundCall) -> Result:
    """The running maximum starts at 0, so a negative row gives its first positions."""
    first = np.broadcast_to(np.arange(call.k), (*call.x.shape[:-1], call.k))
    return np.where((call.x < 0).all(-1, keepdims=True), first, call.right())


@fault(Kind.ORDER, ops.argsort, ops.top_k)
def sorting_compares_in_half_precision(call: BoundCall) -> Result:
    """Numbers that are equal as f16 stay in the order in which they came."""
    return call.right(x=call.x.astype(np.float16).astype(call.x.dtype))


@fault(Kind.ORDER, ops.argsort)
def the_last_of_an_odd_row_is_not_sorted(call: BoundCall) -> Result:
    """Rows of odd length above 32 are sorted without their last element, which stays last."""
    n = call.x.shape[-1]
    if n % 2 == 0 or n <= 32:
        return call.right()
    last = np.full((*call.x.shape[:-1], 1), n - 1)
    return np.concatenate([call.right(x=call.x[..., : n - 1]), last], -1)


@fault(Kind.ORDER, ops.top_k)
def nan_makes_top_k_repeat_a_position(call: BoundCall) -> Result:
    """A row with NaN gives its first position again and again."""
    return np.where(np.isnan(call.x).any(-1, keepdims=True), 0, call.right())
