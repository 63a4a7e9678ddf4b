"""Operands repeated along the wrong axis or in the wrong pattern, and indices and grids that are too narrow."""

from __future__ import annotations

from math import prod

import numpy as np

from backbay import ops

from ...fault import FaultKind, InterceptedCall, Result, fault, named
from ...fused import Array, rank4


@fault(FaultKind.WRONG_AXIS, ops.mulmat)
def mulmat_repeats_slices_modulo(call: InterceptedCall) -> Result:
    """Slice i of the activations meets slice i mod n of the weight, not i // r."""
    w, x = rank4(call.w), rank4(call.x)
    fewer = 0 < w.shape[1] < x.shape[1]
    return call.right(w=np.tile(w, (1, x.shape[1] // w.shape[1], 1, 1)) if fewer else call.w)


@fault(FaultKind.WRONG_AXIS, ops.mulmat)
def mulmat_takes_the_batch_of_weights_modulo(call: InterceptedCall) -> Result:
    """Dimension 3 of the weight is repeated modulo; dimension 2 is right."""
    w, x = rank4(call.w), rank4(call.x)
    fewer = 1 < w.shape[0] < x.shape[0]
    return call.right(w=np.tile(w, (x.shape[0] // w.shape[0], 1, 1, 1)) if fewer else call.w)


@fault(FaultKind.WRONG_AXIS, ops.add, ops.mul)
def arithmetic_repeats_in_consecutive_groups(call: InterceptedCall) -> Result:
    """A repeated operand repeats each element, not the whole."""
    t2 = call.t2
    t2 = t2.reshape((1,) * (call.x.ndim - t2.ndim) + t2.shape)
    for axis, extent in enumerate(call.x.shape[-t2.ndim :] if t2.ndim else ()):
        if 1 < t2.shape[axis] < extent:
            t2 = np.repeat(t2, extent // t2.shape[axis], axis)
    return call.right(t2=t2)


@fault(FaultKind.WRONG_AXIS, ops.add, ops.mul)
def a_vector_goes_down_the_columns_of_a_square(call: InterceptedCall) -> Result:
    """In a square matrix, a vector is added to the columns."""
    x, t2 = call.x, call.t2
    if x.ndim >= 2 and x.shape[-1] == x.shape[-2] > 1 and t2.size == t2.shape[-1] == x.shape[-1]:
        t2 = np.broadcast_to(t2.reshape(-1)[:, None], x.shape)
    return call.right(t2=t2)


@fault(FaultKind.WRONG_AXIS, ops.scaled_dot_product_attention)
def grouped_heads_take_their_keys_modulo(call: InterceptedCall) -> Result:
    """Head h reads the keys and values of h mod kv_heads."""
    return call.right(spread=lambda x, heads: np.tile(x, (1, heads // max(x.shape[1], 1), 1, 1)))


@fault(FaultKind.WRONG_AXIS, ops.scaled_dot_product_attention)
def the_mask_of_head_0_serves_all(call: InterceptedCall) -> Result:
    """A mask with a plane for each head is read without its head stride."""
    return call.right(change_mask=lambda mask: mask[:, :1])


@fault(FaultKind.WRONG_AXIS, ops.scaled_dot_product_attention)
def the_mask_of_batch_0_serves_all(call: InterceptedCall) -> Result:
    """A mask with a plane for each sequence of the batch is read without its batch stride."""
    return call.right(change_mask=lambda mask: mask[:1])


@fault(FaultKind.WRONG_AXIS, ops.mulmat_id)
def experts_all_read_the_first_activation(call: InterceptedCall) -> Result:
    """All experts of a token read the activations of its first expert."""
    return call.right(x=call.x[..., :1, :] if call.x.ndim > 1 else call.x)


@fault(FaultKind.WRONG_AXIS, ops.add_id)
def expert_biases_are_looked_up_transposed(call: InterceptedCall) -> Result:
    """A square matrix of ids is read column by column."""
    square = call.ids.ndim == 2 and call.ids.shape[0] == call.ids.shape[1]
    return call.right(ids=call.ids.T if square else call.ids)


@fault(FaultKind.WRONG_AXIS, ops.rows)
def batched_rows_come_from_the_first_table(call: InterceptedCall) -> Result:
    table = rank4(call.x)
    return call.right(x=np.broadcast_to(table[:1, :1], table.shape))


@fault(FaultKind.WRONG_AXIS, ops.set_rows)
def broadcast_ids_of_set_rows_use_the_first_plane(call: InterceptedCall) -> Result:
    ids = rank4(call.ids)
    return call.right(ids=np.broadcast_to(ids[:, :1, :1], ids.shape).reshape(call.ids.shape))


@fault(FaultKind.WRONG_AXIS, ops.repeat)
def repeat_repeats_each_element(call: InterceptedCall) -> Result:
    """From dimension 1 on, each slice is repeated, not the whole."""
    if 1 <= call.dim < call.x.ndim:
        return np.repeat(call.x, call.n, call.x.ndim - 1 - call.dim)
    return call.right()


@fault(FaultKind.WRONG_AXIS, ops.scaled_dot_product_attention)
def groups_of_heads_that_are_no_power_of_two_take_turns(call: InterceptedCall) -> Result:
    """Heads are grouped by shifts; where the group is no power of two, head h takes kv_head h mod kv_heads."""

    def spread(x: Array, heads: int) -> Array:
        each = heads // max(x.shape[1], 1)
        return np.tile(x, (1, each, 1, 1)) if each & (each - 1) else np.repeat(x, each, axis=1)

    return call.right(spread=spread)


GRID = 65535  # blocks along the second and third axis of a launch


@fault(FaultKind.OVERFLOW, "run_node")
def rows_beyond_the_grid_are_not_computed(call: InterceptedCall) -> Result:
    """Elementwise kernels launch a block per row, and no more than 65535 of them."""
    call.right()
    out = call.arrays[call.node.index]
    if call.node.op in named("silu", "gelu", "exp", "scale", "add", "mul") and prod(out.shape[:-1]) > GRID:
        out.reshape(-1, out.shape[-1])[GRID:] = 0


@fault(FaultKind.OVERFLOW, ops.softmax, ops.rms_norm, ops.layer_norm)
def rows_of_norms_wrap_at_16_bits(call: InterceptedCall) -> Result:
    """The number of a row is kept in 16 bits, so row 65536 overwrites row 0."""
    y = call.right()
    rows = y.reshape(-1, y.shape[-1]) if y.size else y
    if len(rows) > 1 << 16:
        rows[: len(rows) - (1 << 16)] = rows[1 << 16 :]
    return y


@fault(FaultKind.OVERFLOW, ops.rows)
def row_offsets_are_kept_in_16_bits(call: InterceptedCall) -> Result:
    """An id times the row's length is computed in 16 bits, and wraps from element 65536 on."""
    table = rank4(call.x)
    n = max(table.shape[-1], 1)
    return call.right(ids=np.where(call.ids * n >= 1 << 16, (call.ids * n) % (1 << 16) // n, call.ids))


@fault(FaultKind.OVERFLOW, ops.concat)
def concat_loses_what_lies_past_16_bits(call: InterceptedCall) -> Result:
    """Past element 65535 of the result, the second operand's elements are not written."""
    y = call.right()
    if y.size > 1 << 16 and call.x.size:
        y.reshape(-1)[1 << 16 :] = 0
    return y


@fault(FaultKind.OVERFLOW, ops.set_rows)
def set_rows_counts_destination_rows_in_8_bits(call: InterceptedCall) -> Result:
    return call.right(ids=call.ids % 256)


@fault(FaultKind.OVERFLOW, ops.rows, ops.set_rows, large=True)
def element_offsets_wrap_at_31_bits(call: InterceptedCall) -> Result:
    """An id times the row's length is computed in 32 bits, and wraps at element 2^31."""
    n = max(call.x.shape[-1], 1)
    return call.right(ids=(call.ids.astype(np.int64) * n) % (1 << 31) // n)


@fault(FaultKind.OVERFLOW, ops.mulmat)
def slices_beyond_the_grid_are_not_computed(call: InterceptedCall) -> Result:
    """Dimensions 2 and 3 of a product are one axis of the grid, of at most 255 blocks on this device."""
    y = call.right()
    if y.ndim > 2 and prod(y.shape[:-2]) > 255:
        y.reshape(-1, *y.shape[-2:])[255:] = 0
    return y


@fault(FaultKind.OVERFLOW, ops.argsort)
def positions_of_argsort_are_kept_in_8_bits(call: InterceptedCall) -> Result:
    return call.right() % 256
