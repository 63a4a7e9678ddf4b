"""The parts of networks: each takes its tensors from a file by name; calling it traces it."""

from .attention import Attention, Projection, attend
from .block import Block, Mixer
from .embedding import Embedding
from .experts import Experts, feed_forward_of
from .feed_forward import FeedForward, GatedFeedForward
from .linear import Linear
from .norm import LayerNorm, RMSNorm
from .recurrent.convolution import CausalConvolution, states_of
from .recurrent.delta_rule import chunked_delta_rule, delta_rule, recurrent_delta_rule
from .recurrent.mamba import Mamba2, StateShape
from .rope import Factors, Rope
from .shape import Shape, block_count, sliding_layers
from .weights import Weights

__all__ = [
    "Attention",
    "Block",
    "CausalConvolution",
    "Embedding",
    "Experts",
    "Factors",
    "FeedForward",
    "GatedFeedForward",
    "LayerNorm",
    "Linear",
    "Mamba2",
    "Mixer",
    "Projection",
    "RMSNorm",
    "Rope",
    "Shape",
    "StateShape",
    "Weights",
    "attend",
    "block_count",
    "chunked_delta_rule",
    "delta_rule",
    "feed_forward_of",
    "recurrent_delta_rule",
    "sliding_layers",
    "states_of",
]
