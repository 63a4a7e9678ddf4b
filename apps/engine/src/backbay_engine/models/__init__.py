"""Architectures, the parts that they are built from, and their registry."""

from .contract import Model
from .registry import architectures, load_model

__all__ = ["Model", "architectures", "load_model"]
