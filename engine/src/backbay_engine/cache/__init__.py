"""Caches: of causal attention, of encoder outputs, and of recurrent states."""

from .causal import CausalCache
from .contract import BoundCache, Cache, CachePlan, CacheSizes, History, Shift
from .encoder import EncoderCache
from .encoder_decoder import BoundEncoderDecoderCache, EncoderDecoderCache
from .layered import BoundLayeredCache, LayeredCache
from .pictures import BoundPictureCache, PictureCache, PictureWriter, Shown
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
    "Shown",
]
