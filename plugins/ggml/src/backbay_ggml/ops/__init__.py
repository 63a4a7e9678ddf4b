"""The kernels, a module for each family of ops; importing this package fills their table."""

from __future__ import annotations

from . import (
    attention,
    binary,
    elementwise,
    index,
    linear,
    matrix,
    norm,
    order,
    reduce,
    sequence,
    shape,
    spatial,
    write,
)
from .kernel_table import kernel

KERNELS = kernel
KERNEL_CALLS = {op: op.spread(function, skip=1) for op, function in KERNELS.items()}
FAMILIES = (
    attention, binary, elementwise, index, linear, matrix, norm, order, reduce, sequence, shape, spatial, write,
)  # fmt: skip
