"""Caches: of causal attention, of encoder outputs, and of recurrent states."""

from .causal import CausalCache
from .contract import BoundCache, Cache, CachePlan, CacheSizes, History, Shift
from .encoder import EncoderCache
from .layered import BoundLayeredCache, LayeredCache
from .recurrent import BoundRecurrentCache, RecurrentCache

__all__ = [
    "BoundCache",
    "BoundLayeredCache",
    "BoundRecurrentCache",
    "Cache",
    "CachePlan",
    "CacheSizes",
    "CausalCache",
    "EncoderCache",
    "History",
    "LayeredCache",
    "RecurrentCache",
    "Shift",
]
