"""The models that the server offers, and the pool that loads them when they are asked for."""

from .entries import Catalogue, Entry, load_entry
from .pool import Lease, Load, Pool

__all__ = ["Catalogue", "Entry", "Lease", "Load", "Pool", "load_entry"]
