"""Reads and writes out of bounds, unwritten memory, and padding."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops

from ...fault import FaultKind, InterceptedCall, Result, fault, named
from ...fused import rank4


@fault(FaultKind.UNDEFINED, "run_node")
def padding_is_never_written(call: InterceptedCall) -> Result:
    """pad copies its operand, and leaves the padding unwritten."""
    if call.node.op is not ops.pad_ext:
        call.right()
        return
    out = rank4(call.arrays[call.node.index])
    before = out.copy()
    call.right()
    amounts = zip(call.node.args[7::-2], call.node.args[8:0:-2], out.shape, strict=True)
    inner = out[tuple(slice(low, n - high) for low, high, n in amounts)]
    kept, out[...] = inner.copy(), before
    inner[...] = kept


@fault(FaultKind.UNDEFINED, "run_node")
def what_is_off_the_triangle_is_never_written(call: InterceptedCall) -> Result:
    """tri and diag write only where the result is not 0."""
    before = call.arrays[call.node.index].copy()
    call.right()
    if call.node.op in named("tri", "diag") and before.size:
        np.copyto(call.arrays[call.node.index], before, where=call.arrays[call.node.index] == 0)


@fault(FaultKind.UNDEFINED, ops.softmax)
def softmax_reads_one_element_too_many(call: InterceptedCall) -> Result:
    """The sum of a row includes the next row's first element, unless 4 divides the row's length."""
    x = call.x
    if x.ndim < 2 or x.shape[-1] % 4 == 0 or x.size == 0:
        return call.right()
    rows = x.reshape(-1, x.shape[-1])
    beyond = np.concatenate([rows[1:, :1], np.full((1, 1), -np.inf)])
    return call.right(x=np.concatenate([rows, beyond], -1))[:, :-1].reshape(x.shape)


@fault(FaultKind.UNDEFINED, "run_node")
def a_result_runs_over_its_end(call: InterceptedCall) -> Result:
    """A kernel that writes 4 elements at a time writes past the end of its buffer."""
    call.right()
    node, out = call.node, call.arrays[call.node.index]
    # Without guard zones, the write would hit the host's memory.
    guarded = call.backend.params.debug.guard_bytes >= 16
    if guarded and not node.is_view and node.dtype is DType.F32 and out.size % 4:
        end = np.lib.stride_tricks.as_strided(out.reshape(-1)[-1:], (4 - out.size % 4 + 1,), (4,))
        end[1:] = 0


@fault(FaultKind.UNDEFINED, ops.conv2d, ops.im2col)
def padding_of_a_convolution_wraps_around(call: InterceptedCall) -> Result:
    """Columns left and right of the data are read from the other end of the row."""
    if not call.p0 or call.data.shape[-1] < call.p0:
        return call.right()
    wide = np.concatenate([call.data[..., -call.p0 :], call.data, call.data[..., : call.p0]], -1)
    return call.right(data=wide, p0=0)


@fault(FaultKind.UNDEFINED, ops.avg_pool2d)
def padding_does_not_count_in_the_mean(call: InterceptedCall) -> Result:
    """Windows over the edge are divided by the number of elements inside of the data."""
    inside = call.right(x=np.ones_like(call.x))
    return call.right() / np.where(inside > 0, inside, 1)


@fault(FaultKind.UNDEFINED, ops.scaled_dot_product_attention)
def history_is_rounded_up_to_32(call: InterceptedCall) -> Result:
    """Positions up to the next multiple of 32 take part as zeros that nobody masks."""
    more = -rank4(call.key).shape[1] % 32
    if not more or call.cache_config_applied:
        return call.right()
    key, value = (np.pad(rank4(a), [(0, 0), (0, more), (0, 0), (0, 0)]) for a in (call.key, call.value))
    mask = None if call.mask is None else np.pad(rank4(call.mask), [(0, 0), (0, 0), (0, 0), (0, more)])
    return call.right(key=key, value=value, mask=mask)


@fault(FaultKind.UNDEFINED, ops.set_rows)
def set_rows_clears_the_row_behind(call: InterceptedCall) -> Result:
    """Rows are written in pairs, so that the row behind the last one becomes zero."""
    y = call.right()
    if call.ids.size and call.x.ndim >= 2 and int(call.ids.max()) + 1 < call.x.shape[-2]:
        y[..., int(call.ids.max()) + 1, :] = 0
    return y


@fault(FaultKind.UNDEFINED, ops.mulmat)
def columns_of_padding_reach_the_product(call: InterceptedCall) -> Result:
    """Rows are padded to 16 with the next row of the activations, against ones."""
    n, x4 = call.w.shape[-1], rank4(call.x)
    if n % 16 == 0 or n < 16 or x4.shape[2] < 2:
        return call.right()
    stray = np.zeros_like(x4[..., :1])
    stray[..., :-1, :] = x4[..., 1:, :1]
    return call.right() + stray.reshape(*call.x.shape[:-1], 1)


@fault(FaultKind.UNDEFINED, ops.scaled_dot_product_attention)
def rows_of_mask_padding_shift_the_mask(call: InterceptedCall) -> Result:
    """A mask with more rows than tokens is read from its end."""
    tokens = rank4(call.query).shape[1]
    return call.right(change_mask=lambda mask: mask[:, :, mask.shape[2] - tokens :])
