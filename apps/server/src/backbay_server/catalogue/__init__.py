"""The models that the server offers, and the pool that loads them when they are asked for."""

from .catalogue import Catalogue, CatalogueEntry, load_entry
from .pool import Load, ModelLease, ModelPool

__all__ = ["Catalogue", "CatalogueEntry", "Load", "ModelLease", "ModelPool", "load_entry"]
