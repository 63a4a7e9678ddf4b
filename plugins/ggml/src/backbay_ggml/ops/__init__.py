"""The kernels, a module for each family of ops; importing this package fills their table."""

from __future__ import annotations

from ..lowering.builder import kernel
from . import (  # noqa: F401 - they fill the table
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

KERNELS = kernel
KERNEL_CALLS = {op: op.spread(function, skip=1) for op, function in KERNELS.items()}
