"""Caches: of causal attention, of encoder outputs, and of recurrent states."""

from .attention.causal import CausalCache
from .attention.cross_attention import VisibleRows
from .attention.encoder import EncoderCache
from .attention.media import BoundMediaCrossAttentionCache, MediaCacheGraph, MediaCrossAttentionCache
from .contract import AttentionOperands, BoundCache, Cache, CachePlan, CacheSizes, Shift
from .layered import BoundEncoderDecoderCache, BoundLayeredCache, EncoderDecoderCache, LayeredCache
from .recurrent import BoundRecurrentCache, RecurrentCache

__all__ = [
    "AttentionOperands",
    "BoundCache",
    "BoundEncoderDecoderCache",
    "BoundLayeredCache",
    "BoundMediaCrossAttentionCache",
    "BoundRecurrentCache",
    "Cache",
    "CachePlan",
    "CacheSizes",
    "CausalCache",
    "EncoderCache",
    "EncoderDecoderCache",
    "LayeredCache",
    "MediaCacheGraph",
    "MediaCrossAttentionCache",
    "RecurrentCache",
    "Shift",
    "VisibleRows",
]
