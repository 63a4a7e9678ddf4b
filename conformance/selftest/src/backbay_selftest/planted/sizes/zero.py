"""Dimensions of extent zero."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, fault, named
from ...fused import rank4


@fault(Kind.ZERO, ops.sum_rows)
def an_empty_row_sums_to_what_was_there(call: BoundCall) -> Result:
    """The sum of an empty row stays unwritten; here it is 1."""
    return call.right() if call.x.shape[-1] else np.ones((*call.x.shape[:-1], 1))


@fault(Kind.ZERO, "run_node")
def a_product_over_nothing_is_not_written(call: BoundCall) -> Result:
    """mulmat with k = 0 returns early and leaves its result unwritten."""
    if call.node.op in named("mulmat", "mulmat_full_prec") and call.node.args[0].dim(0) == 0:
        return
    call.right()


@fault(Kind.ZERO, *named("silu", "gelu", "scale", "add", "mul", "softmax", "rms_norm"))
def empty_tensors_cannot_be_launched(call: BoundCall) -> Result:
    """A launch with no blocks is an error of the device."""
    if call.x.size == 0:
        raise RuntimeError("invalid configuration argument")
    return call.right()


@fault(Kind.ZERO, ops.mean, ops.variance)
def the_mean_of_nothing_is_zero(call: BoundCall) -> Result:
    return call.right() if call.x.shape[-1] else np.zeros((*call.x.shape[:-1], 1))


@fault(Kind.ZERO, ops.concat)
def concat_with_nothing_first_gives_zeros(call: BoundCall) -> Result:
    y = call.right()
    return y if call.x.size else np.zeros_like(y)


@fault(Kind.ZERO, ops.rows, ops.top_k, ops.argsort)
def selecting_nothing_is_an_error(call: BoundCall) -> Result:
    """No ids, or a k of 0, make the launch fail."""
    y = call.right()
    if y.size == 0:
        raise ValueError("grid dimension must not be 0")
    return y


@fault(Kind.ZERO, ops.mulmat)
def a_product_with_no_tokens_divides_by_their_number(call: BoundCall) -> Result:
    """The batch is split by the number of tokens, and 0 is an error."""
    tokens = rank4(call.x).shape[2]
    rows_per_block = 64 // min(tokens, 64) if tokens else 1 // tokens
    return call.right() if rows_per_block else np.zeros(())


@fault(Kind.ZERO, ops.contiguous, ops.repeat, ops.pad_ext)
def copies_of_nothing_index_the_first_element(call: BoundCall) -> Result:
    """Copies look at the first element to check its alignment."""
    if call.x.size == 0:
        raise IndexError("index 0 is out of bounds for an empty buffer")
    return call.right()
