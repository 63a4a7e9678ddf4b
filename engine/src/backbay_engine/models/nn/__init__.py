"""The parts of networks: each takes its tensors from a file by name; calling it traces it."""

from .activation import ACTIVATIONS, Activation, ActivationName, capped
from .attention import Attention, Projection, attend
from .block import Block, Mixer, Module, ParallelBlock, build_block
from .embedding import Embedding, Positions
from .experts import Experts, feed_forward_of
from .feed_forward import FeedForward, GatedFeedForward, SharedExpert
from .latent import LatentAttention, LatentParts, attend_absorbed, attend_plain, head_lengths
from .linear import Linear
from .norm import LayerNorm, RMSNorm
from .pooling import Pooling, TextHead
from .recurrent.convolution import CausalConvolution, states_of
from .recurrent.delta_net import DeltaNet
from .recurrent.delta_rule import delta_rule
from .recurrent.mamba import Mamba2, StateShape
from .rope import Factors, Rope
from .routing import Gating, Routing
from .shape import Shape, attends, block_count, sliding_layers
from .weights import Weights

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "ActivationName",
    "Attention",
    "Block",
    "CausalConvolution",
    "DeltaNet",
    "Embedding",
    "Experts",
    "Factors",
    "FeedForward",
    "GatedFeedForward",
    "Gating",
    "LatentAttention",
    "LatentParts",
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
    "attend_absorbed",
    "attend_plain",
    "attends",
    "block_count",
    "build_block",
    "capped",
    "delta_rule",
    "feed_forward_of",
    "head_lengths",
    "sliding_layers",
    "states_of",
]
