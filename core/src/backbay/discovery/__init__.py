"""Installed backends: finding them by entry points, checking, probing and opening them."""

from .entry_points import Declared, conflict, declared
from .installed import BackendEntry, backends, entry
from .model_files import open_model

__all__ = ["BackendEntry", "Declared", "backends", "conflict", "declared", "entry", "open_model"]
