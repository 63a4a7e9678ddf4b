"""The faults, in rooms by what is wrong, a module per few classes; importing this registers them all."""

from importlib import import_module
from pkgutil import walk_packages

for found in walk_packages(__path__, f"{__name__}."):
    import_module(found.name)
