"""Low-rank adapters (LoRA): their files, whether they fit a model, and their matrices in memory, stacked for all of them."""

from .adapter import Adapter, AdapterFactors, Matrices
from .by_modality import adapter_name_of, own_adapters
from .opening import open_adapter

__all__ = ["Adapter", "AdapterFactors", "Matrices", "adapter_name_of", "open_adapter", "own_adapters"]
