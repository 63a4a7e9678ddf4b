"""Installed backends: found by entry point, registered, probed, opened."""

from .entry_points import Declared, conflict, declared
from .installed import BackendEntry, backends, entry

__all__ = ["BackendEntry", "Declared", "backends", "conflict", "declared", "entry"]
