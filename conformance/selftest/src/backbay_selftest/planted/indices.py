"""Indices and grids that are too narrow."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from backbay import KernelBackend, Node, ops

from ..faults import Array, Kernel, Right, fault, named
from ..fused import rank4

OVERFLOW = "32-bit index or grid overflow"
GRID = 65535  # blocks along the second and third axis of a launch


@fault(OVERFLOW, "run_node", like="O32299")
def rows_beyond_the_grid_are_not_computed(
    right: Right, _: KernelBackend, node: Node, arrays: Sequence[Array]
) -> None:
    """Elementwise kernels launch a block per row, and no more than 65535 of them."""
    right(node, arrays)
    out = arrays[node.index]
    if node.op in named("silu", "gelu", "exp", "scale", "add", "mul") and prod(out.shape[:-1]) > GRID:
        out.reshape(-1, out.shape[-1])[GRID:] = 0


@fault(OVERFLOW, ops.softmax, ops.rms_norm, ops.layer_norm, like="L16849")
def rows_of_norms_wrap_at_16_bits(right: Kernel, x: Array, *args: Any, **keywords: Any) -> Array:
    """The number of a row is kept in 16 bits, so row 65536 is computed where row 0 is."""
    y = right(x, *args, **keywords)
    rows = y.reshape(-1, y.shape[-1]) if y.size else y
    if len(rows) > 1 << 16:
        rows[: len(rows) - (1 << 16)] = rows[1 << 16 :]
    return y


@fault(OVERFLOW, ops.rows, like="L16849")
def row_offsets_are_kept_in_16_bits(right: Kernel, x: Array, ids: Array) -> Array:
    """An id times the row's length is computed in 16 bits, and wraps from element 65536 on."""
    table = rank4(x)
    n = max(table.shape[-1], 1)
    return right(x, np.where(ids * n >= 1 << 16, (ids * n) % (1 << 16) // n, ids))


@fault(OVERFLOW, ops.concat, like="O28107")
def concat_loses_what_lies_past_16_bits(right: Kernel, x: Array, t2: Array, dim: int) -> Array:
    """Past element 65535 of the result, the second operand's elements are not written."""
    y = right(x, t2, dim)
    if y.size > 1 << 16 and x.size:
        y.reshape(-1)[1 << 16 :] = 0
    return y


@fault(OVERFLOW, ops.set_rows, like="O32299")
def set_rows_counts_destination_rows_in_8_bits(right: Kernel, x: Array, src: Array, ids: Array) -> Array:
    """The number of the row that is written to is kept in 8 bits."""
    return right(x, src, ids % 256)


@fault(OVERFLOW, ops.rows, ops.set_rows, like="L16849")
def element_offsets_wrap_at_31_bits(right: Kernel, x: Array, *args: Array) -> Array:
    """An id times the row's length is computed in 32 bits: rows past element 2^31 are others."""
    *rest, ids = args
    n = max(x.shape[-1], 1)
    wrapped = (ids.astype(np.int64) * n) % (1 << 31) // n
    return right(x, *rest, wrapped)


@fault(OVERFLOW, ops.mulmat, like="L16849")
def slices_beyond_the_grid_are_not_computed(right: Kernel, w: Array, x: Array) -> Array:
    """Dimensions 2 and 3 of a product are one axis of the grid, of at most 255 blocks on this device."""
    y = right(w, x)
    if y.ndim > 2 and prod(y.shape[:-2]) > 255:
        y.reshape(-1, *y.shape[-2:])[255:] = 0
    return y


@fault(OVERFLOW, ops.argsort, like="O3391")
def positions_of_argsort_are_kept_in_8_bits(right: Kernel, x: Array) -> Array:
    """Rows longer than 256 come back with positions modulo 256."""
    return right(x) % 256
