"""The models that the server offers, and the pool that loads them when they are asked for."""

from .catalogue import Catalogue, CatalogueEntry, is_whisper, load_entry
from .pool import Load, Mix, ModelLease, ModelPool

__all__ = [
    "Catalogue",
    "CatalogueEntry",
    "Load",
    "Mix",
    "ModelLease",
    "ModelPool",
    "is_whisper",
    "load_entry",
]
