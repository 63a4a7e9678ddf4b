"""Caches: of causal attention, of encoder outputs, and of recurrent states."""

from .attention.causal import CausalCache
from .attention.cross_attention import VisibleRows
from .attention.encoder import EncoderCache
from .attention.pictures import BoundPictureCache, PictureCache, PictureWriter
from .contract import BoundCache, Cache, CachePlan, CacheSizes, History, Shift
from .layered import BoundEncoderDecoderCache, BoundLayeredCache, EncoderDecoderCache, LayeredCache
from .recurrent import BoundRecurrentCache, RecurrentCache

__all__ = [
    "BoundCache",
    "BoundEncoderDecoderCache",
    "BoundLayeredCache",
    "BoundPictureCache",
    "BoundRecurrentCache",
    "Cache",
    "CachePlan",
    "CacheSizes",
    "CausalCache",
    "EncoderCache",
    "EncoderDecoderCache",
    "History",
    "LayeredCache",
    "PictureCache",
    "PictureWriter",
    "RecurrentCache",
    "Shift",
    "VisibleRows",
]
