"""Too narrow indices and grids."""

from __future__ import annotations

from math import prod

import numpy as np

from backbay import ops

from ...faults import BoundCall, Kind, Result, fault, named
from ...fused import rank4

GRID = 65535  # blocks along the second and third axis of a launch


@fault(Kind.OVERFLOW, "run_node")
def rows_beyond_the_grid_are_not_computed(call: BoundCall) -> Result:
    """Elementwise kernels launch a block per row, and no more than 65535 of them."""
    call.right()
    out = call.arrays[call.node.index]
    if call.node.op in named("silu", "gelu", "exp", "scale", "add", "mul") and prod(out.shape[:-1]) > GRID:
        out.reshape(-1, out.shape[-1])[GRID:] = 0


@fault(Kind.OVERFLOW, ops.softmax, ops.rms_norm, ops.layer_norm)
def rows_of_norms_wrap_at_16_bits(call: BoundCall) -> Result:
    """The number of a row is kept in 16 bits, so row 65536 overwrites row 0."""
    y = call.right()
    rows = y.reshape(-1, y.shape[-1]) if y.size else y
    if len(rows) > 1 << 16:
        rows[: len(rows) - (1 << 16)] = rows[1 << 16 :]
    return y


@fault(Kind.OVERFLOW, ops.rows)
def row_offsets_are_kept_in_16_bits(call: BoundCall) -> Result:
    """An id times the row's length is computed in 16 bits, and wraps from element 65536 on."""
    table = rank4(call.x)
    n = max(table.shape[-1], 1)
    return call.right(ids=np.where(call.ids * n >= 1 << 16, (call.ids * n) % (1 << 16) // n, call.ids))


@fault(Kind.OVERFLOW, ops.concat)
def concat_loses_what_lies_past_16_bits(call: BoundCall) -> Result:
    """Past element 65535 of the result, the second operand's elements are not written."""
    y = call.right()
    if y.size > 1 << 16 and call.x.size:
        y.reshape(-1)[1 << 16 :] = 0
    return y


@fault(Kind.OVERFLOW, ops.set_rows)
def set_rows_counts_destination_rows_in_8_bits(call: BoundCall) -> Result:
    return call.right(ids=call.ids % 256)


@fault(Kind.OVERFLOW, ops.rows, ops.set_rows, large=True)
def element_offsets_wrap_at_31_bits(call: BoundCall) -> Result:
    """An id times the row's length is computed in 32 bits, and wraps at element 2^31."""
    n = max(call.x.shape[-1], 1)
    return call.right(ids=(call.ids.astype(np.int64) * n) % (1 << 31) // n)


@fault(Kind.OVERFLOW, ops.mulmat)
def slices_beyond_the_grid_are_not_computed(call: BoundCall) -> Result:
    """Dimensions 2 and 3 of a product are one axis of the grid, of at most 255 blocks on this device."""
    y = call.right()
    if y.ndim > 2 and prod(y.shape[:-2]) > 255:
        y.reshape(-1, *y.shape[-2:])[255:] = 0
    return y


@fault(Kind.OVERFLOW, ops.argsort)
def positions_of_argsort_are_kept_in_8_bits(call: BoundCall) -> Result:
    return call.right() % 256
