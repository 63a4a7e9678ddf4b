"""All kernels: importing a module fills the table."""

from __future__ import annotations

from . import attention, binary, elementwise, index, linear, matrix, norm, order, sequence, shape, spatial
from .table import kernel

FAMILIES = (attention, binary, elementwise, index, linear, matrix, norm, order, sequence, shape, spatial)
TABLE = kernel
