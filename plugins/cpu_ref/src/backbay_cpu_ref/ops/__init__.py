"""The kernels, a module per family; importing this package fills their table."""

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
FAMILIES = (
    attention, binary, elementwise, index, linear, matrix, norm, order, reduce, sequence, shape, spatial, write
)  # fmt: skip
