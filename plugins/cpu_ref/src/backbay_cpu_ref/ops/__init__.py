"""The kernels, a module per family; importing this package fills their table."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .kernel_table import kernel

KERNELS = kernel
for family in iter_modules(__path__, f"{__name__}."):
    import_module(family.name)
