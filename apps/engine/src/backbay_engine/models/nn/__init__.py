"""The parts of networks: each takes its tensors from a file by name; calling it traces it."""

from .attention import Attention, Projection, attend
from .block import Block, Mixer, Module, ParallelBlock, build_block
from .context_attention import ContextAttention, context_of
from .experts import Experts, Gating, Routing, feed_forward_of
from .feed_forward import (
    ACTIVATIONS,
    Activation,
    ActivationName,
    FeedForward,
    GatedFeedForward,
    SharedExpert,
    capped,
)
from .latent import LatentAttention, head_lengths
from .linear import Embedding, Linear, Positions
from .norm import LayerNorm, RMSNorm
from .pooling import Pooling, TextHead
from .recurrent import CausalConvolution, DeltaNet, Mamba2, StateShape, delta_rule, states_of
from .rope import Factors, Rope
from .shape import Shape, attends, block_count, sliding_layers
from .weights import Weights

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "ActivationName",
    "Attention",
    "Block",
    "CausalConvolution",
    "ContextAttention",
    "DeltaNet",
    "Embedding",
    "Experts",
    "Factors",
    "FeedForward",
    "GatedFeedForward",
    "Gating",
    "LatentAttention",
    "LayerNorm",
    "Linear",
    "Mamba2",
    "Mixer",
    "Module",
    "ParallelBlock",
    "Pooling",
    "Positions",
    "Projection",
    "RMSNorm",
    "Rope",
    "Routing",
    "Shape",
    "SharedExpert",
    "StateShape",
    "TextHead",
    "Weights",
    "attend",
    "attends",
    "block_count",
    "build_block",
    "capped",
    "context_of",
    "delta_rule",
    "feed_forward_of",
    "head_lengths",
    "sliding_layers",
    "states_of",
]
