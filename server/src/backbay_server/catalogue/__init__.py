"""The models that the server offers, and the pool that loads them when they are asked for."""

from __future__ import annotations

from .entries import Catalogue, Entry
from .loading import load_entry
from .pool import Lease, Load, Pool

__all__ = ["Catalogue", "Entry", "Lease", "Load", "Pool", "load_entry"]
