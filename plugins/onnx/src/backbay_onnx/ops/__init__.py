"""The kernels, a module per family; importing this package fills their table."""

from __future__ import annotations

from . import attention, binary, elementwise, index, linear, matrix, norm, order, sequence, shape, spatial
from .table import kernel

__all__ = ["FAMILIES", "KERNELS"]

FAMILIES = (attention, binary, elementwise, index, linear, matrix, norm, order, sequence, shape, spatial)
KERNELS = kernel
