"""Low-rank adapters (LoRA): their files, whether they fit a model, and their matrices in memory, stacked for all of them."""

from .adapter import Adapter, Factors, Matrices
from .opening import open_adapter

__all__ = ["Adapter", "Factors", "Matrices", "open_adapter"]
