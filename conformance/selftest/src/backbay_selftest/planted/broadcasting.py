"""Operands repeated along the wrong axis, or in the wrong pattern."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import ops

from ..faults import Array, Kernel, fault
from ..fused import rank4

WRONG_AXIS = "broadcast along the wrong axis"


@fault(WRONG_AXIS, ops.mulmat, like="L14817")
def mulmat_repeats_slices_modulo(right: Kernel, w: Array, x: Array) -> Array:
    """Slice i of the activations meets slice i mod n of the weight, not i // r."""
    w4, x4 = rank4(w), rank4(x)
    if 0 < w4.shape[1] < x4.shape[1]:
        w = np.tile(w4, (1, x4.shape[1] // w4.shape[1], 1, 1))
    return right(w, x)


@fault(WRONG_AXIS, ops.mulmat, like="L14817")
def mulmat_takes_the_batch_of_weights_modulo(right: Kernel, w: Array, x: Array) -> Array:
    """Dimension 3 of the weight is repeated modulo; dimension 2 is right."""
    w4, x4 = rank4(w), rank4(x)
    if 1 < w4.shape[0] < x4.shape[0]:
        w = np.tile(w4, (x4.shape[0] // w4.shape[0], 1, 1, 1))
    return right(w, x)


@fault(WRONG_AXIS, ops.add, ops.mul, like="L14817")
def arithmetic_repeats_in_consecutive_groups(right: Kernel, x: Array, t2: Array) -> Array:
    """An operand that is repeated more than once repeats each element, not the whole."""
    t2 = t2.reshape((1,) * (x.ndim - t2.ndim) + t2.shape)
    for axis, extent in enumerate(x.shape[-t2.ndim :] if t2.ndim else ()):
        if 1 < t2.shape[axis] < extent:
            t2 = np.repeat(t2, extent // t2.shape[axis], axis)
    return right(x, t2)


@fault(WRONG_AXIS, ops.add, ops.mul, like="O17689")
def a_vector_goes_down_the_columns_of_a_square(right: Kernel, x: Array, t2: Array) -> Array:
    """Where rows and columns are as many, a vector is added to the columns."""
    if x.ndim >= 2 and x.shape[-1] == x.shape[-2] > 1 and t2.size == t2.shape[-1] == x.shape[-1]:
        t2 = np.broadcast_to(t2.reshape(-1)[:, None], x.shape)
    return right(x, t2)


@fault(WRONG_AXIS, ops.scaled_dot_product_attention, like="L14817")
def grouped_heads_take_their_keys_modulo(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """Head h reads the keys and values of h mod kv_heads."""
    return right(
        *args, spread=lambda x, heads: np.tile(x, (1, heads // max(x.shape[1], 1), 1, 1)), **keywords
    )


@fault(WRONG_AXIS, ops.scaled_dot_product_attention, like="L14817")
def the_mask_of_head_0_serves_all(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """A mask with a plane for each head is read without its head stride."""
    return right(*args, change_mask=lambda mask: mask[:, :1], **keywords)


@fault(WRONG_AXIS, ops.scaled_dot_product_attention, like="L14817")
def the_mask_of_batch_0_serves_all(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """A mask with a plane for each sequence of the batch is read without its batch stride."""
    return right(*args, change_mask=lambda mask: mask[:1], **keywords)


@fault(WRONG_AXIS, ops.mulmat_id, like="L13155")
def experts_all_read_the_first_activation(right: Kernel, w: Array, x: Array, ids: Array) -> Array:
    """Activations that differ between the experts of a token are all read from the first one's place."""
    return right(w, x[..., :1, :] if x.ndim > 1 else x, ids)


@fault(WRONG_AXIS, ops.add_id, like="L15660")
def expert_biases_are_looked_up_transposed(right: Kernel, x: Array, t2: Array, ids: Array) -> Array:
    """Where as many experts are used as there are tokens, ids are read column by column."""
    if ids.ndim == 2 and ids.shape[0] == ids.shape[1]:
        ids = ids.T
    return right(x, t2, ids)


@fault(WRONG_AXIS, ops.rows, like="L16849")
def batched_rows_come_from_the_first_table(right: Kernel, x: Array, ids: Array) -> Array:
    """A table with dimension 2 or 3 is looked up in its first plane only."""
    table = rank4(x)
    return right(np.broadcast_to(table[:1, :1], table.shape), ids)


@fault(WRONG_AXIS, ops.set_rows, like="L17108")
def broadcast_ids_of_set_rows_use_the_first_plane(right: Kernel, x: Array, src: Array, ids: Array) -> Array:
    """Ids with planes of their own for dimension 2 are read from the first plane."""
    return right(x, src, np.broadcast_to(rank4(ids)[:, :1, :1], rank4(ids).shape).reshape(ids.shape))


@fault(WRONG_AXIS, ops.repeat, like="L14817")
def repeat_repeats_each_element(right: Kernel, x: Array, dim: int, n: int) -> Array:
    """Along dimension 1 and up, each slice is repeated before the next one, not the whole."""
    if 1 <= dim < x.ndim:
        return np.repeat(x, n, x.ndim - 1 - dim)
    return right(x, dim, n)


@fault(WRONG_AXIS, ops.scaled_dot_product_attention, like="L14817")
def groups_of_heads_that_are_no_power_of_two_take_turns(right: Kernel, *args: Any, **keywords: Any) -> Array:
    """Heads per kv_head are divided by shifts; where that fails, kv_heads are dealt out modulo."""

    def spread(x: Array, heads: int) -> Array:
        each = heads // max(x.shape[1], 1)
        return np.tile(x, (1, each, 1, 1)) if each & (each - 1) else np.repeat(x, each, axis=1)

    return right(*args, spread=spread, **keywords)
