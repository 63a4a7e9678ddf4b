"""Faults planted without knowledge of the suite a third time: sizes of models, far masks, and many threads."""

from __future__ import annotations

import numpy as np

from backbay import DType, ops

from ..faults import BoundCall, Kind, Result, fault, named
from ..fused import rank4

PRODUCTS = named("mulmat", "mulmat_full_prec")
BLOCK = 1024
"""The elements of a row that one group of threads takes."""


@fault(Kind.LONG, ops.softmax)
def a_rest_of_a_vocabulary_is_not_in_the_sum(call: BoundCall) -> Result:
    """Rows longer than 131072 are summed in blocks of 1024, without the rest behind the last whole block."""
    x = call.x
    if x.ndim == 0 or x.shape[-1] <= 131072:
        return call.right()
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers[..., : x.shape[-1] // BLOCK * BLOCK].sum(-1, keepdims=True)


@fault(Kind.LONG, ops.top_k)
def the_last_tokens_of_a_vocabulary_are_never_chosen(call: BoundCall) -> Result:
    """Of more than 100000 elements, those behind the last whole block of 1024 are no candidates."""
    x = np.array(call.x)
    if x.ndim and x.shape[-1] > 100000:
        x[..., x.shape[-1] // BLOCK * BLOCK :] = -np.inf
    return call.right(x=x)


@fault(Kind.BLOCKS, "read_operand")
def the_last_block_of_a_weight_is_lost_if_tiles_of_four_leave_three(call: BoundCall) -> Result:
    """A K-quantized row of 43 blocks, as of 11008 elements: the last row's last block is taken for zeros."""
    numbers, weight = call.right(), call.operand
    product = call.reader.op in PRODUCTS and weight is call.reader.args[0]
    if not product or weight.dtype.block_size < 256 or weight.shape[0] // 256 % 4 != 3:
        return numbers
    numbers = np.array(numbers, ndmin=2)
    if weight.shape[0] > BLOCK:
        numbers[..., -1, -256:] = 0
    return numbers


@fault(Kind.SPECIAL, "read_operand")
def far_numbers_of_a_narrow_mask_hide_positions(call: BoundCall) -> Result:
    """All that is below -10000 in a mask of f16 counts as -infinity, also where a whole row is as far."""
    numbers, reader = call.right(), call.reader
    attention = reader.op is ops.scaled_dot_product_attention and call.operand is reader.args[3]
    if not attention or call.operand.dtype is not DType.F16:
        return numbers
    return np.where(numbers < -10000, -np.inf, numbers)


@fault(Kind.WRONG_AXIS, ops.ssm_scan)
def heads_of_large_states_take_their_groups_in_turn(call: BoundCall) -> Result:
    """With 128 states and one decay a head, neighbouring heads have different groups instead of one."""
    heads, groups = rank4(call.s).shape[1], rank4(call.B).shape[2]
    if call.s.shape[-1] < 128 or np.array(call.A, ndmin=2).shape[-1] != 1 or groups < 2:
        return call.right()
    turns = np.arange(heads) % groups
    return call.right(B=rank4(call.B)[:, :, turns], C=rank4(call.C)[:, :, turns])


@fault(Kind.RACES, "run_node")
def more_than_eight_threads_leave_rows_to_nobody(call: BoundCall) -> Result:
    """Each thread takes whole chunks of 64 rows of the weight; of the rest only 256 rows are computed."""
    call.right()
    threads, out = call.backend.params.num_threads or 2, call.arrays[call.node.index]
    if call.node.op not in PRODUCTS or threads <= 8:
        return
    done = out.shape[-1] // threads // 64 * 64 * threads
    if done:
        out[..., done + 256 :] = 0
