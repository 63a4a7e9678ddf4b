"""Low-rank adapters (LoRA): their files, whether they fit a model, and their matrices in memory, stacked for all of them."""

from .adapter import Adapter, AdapterFactors, Matrices
from .opening import open_adapter

__all__ = ["Adapter", "AdapterFactors", "Matrices", "open_adapter"]
