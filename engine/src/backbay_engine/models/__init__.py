"""Models: the contract, the parts of networks, the architectures, and their registry."""

from .contract import Model
from .registry import architectures, load_model

__all__ = ["Model", "architectures", "load_model"]
