"""Architectures: each a file, found by the name that a GGUF file gives."""

from .contract import Model
from .registry import architectures, load_model

__all__ = ["Model", "architectures", "load_model"]
