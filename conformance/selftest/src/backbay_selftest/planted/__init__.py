"""The faults, a module per few classes; importing this registers them all."""

from importlib import import_module
from pkgutil import iter_modules

for found in iter_modules(__path__, f"{__name__}."):
    import_module(found.name)
