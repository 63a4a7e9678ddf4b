"""The parts of networks: each takes its tensors from a file by name; calling it traces it."""

from .attention import Attention, Projection, attend
from .block import Block
from .embedding import Embedding
from .experts import Experts, feed_forward_of
from .feed_forward import FeedForward, GatedFeedForward
from .linear import Linear
from .norm import LayerNorm, RMSNorm
from .rope import Factors, Rope
from .shape import Shape, block_count, sliding_layers
from .weights import Weights

__all__ = [
    "Attention",
    "Block",
    "Embedding",
    "Experts",
    "Factors",
    "FeedForward",
    "GatedFeedForward",
    "LayerNorm",
    "Linear",
    "Projection",
    "RMSNorm",
    "Rope",
    "Shape",
    "Weights",
    "attend",
    "block_count",
    "feed_forward_of",
    "sliding_layers",
]
