"""The door for authors of models: with `backbay` and `backbay_engine`, all that an architecture may import.

Nothing else is promised: other modules may move in any release. docs/add-a-model.md shows how the names are used.
"""

from __future__ import annotations

from backbay.gguf import Key, choice, flag, number, numbers, text, texts, whole, wholes

from .cache import (
    BoundCache,
    BoundLayeredCache,
    BoundPictureCache,
    BoundRecurrentCache,
    Cache,
    CachePlan,
    CacheSizes,
    CausalCache,
    EncoderCache,
    History,
    LayeredCache,
    PictureCache,
    RecurrentCache,
    Shift,
)
from .cache.encoder import BoundEncoderCache
from .cache.step_only import Reach
from .models import Model, architectures, keys, load_model
from .models.batch import Batch
from .models.decoder import Decoder, DecoderBlock
from .models.encoder import Encoder
from .models.nn import (
    Attention,
    Block,
    Embedding,
    Experts,
    Factors,
    FeedForward,
    GatedFeedForward,
    Gating,
    LatentAttention,
    LayerNorm,
    Linear,
    ParallelBlock,
    Pooling,
    Positions,
    Projection,
    RMSNorm,
    Rope,
    Routing,
    Shape,
    SharedExpert,
    TextHead,
    Weights,
    attend,
    block_count,
    capped,
    feed_forward_of,
    sliding_layers,
)
from .runner.step_cache import StepCache
from .steps.builders import prompt_step
from .steps.step import Step

__all__ = [
    "Attention",
    "Batch",
    "Block",
    "BoundCache",
    "BoundEncoderCache",
    "BoundLayeredCache",
    "BoundPictureCache",
    "BoundRecurrentCache",
    "Cache",
    "CachePlan",
    "CacheSizes",
    "CausalCache",
    "Decoder",
    "DecoderBlock",
    "Embedding",
    "Encoder",
    "EncoderCache",
    "Experts",
    "Factors",
    "FeedForward",
    "GatedFeedForward",
    "Gating",
    "History",
    "Key",
    "LatentAttention",
    "LayerNorm",
    "LayeredCache",
    "Linear",
    "Model",
    "ParallelBlock",
    "PictureCache",
    "Pooling",
    "Positions",
    "Projection",
    "RMSNorm",
    "Reach",
    "RecurrentCache",
    "Rope",
    "Routing",
    "Shape",
    "SharedExpert",
    "Shift",
    "Step",
    "StepCache",
    "TextHead",
    "Weights",
    "architectures",
    "attend",
    "block_count",
    "capped",
    "choice",
    "feed_forward_of",
    "flag",
    "keys",
    "load_model",
    "number",
    "numbers",
    "prompt_step",
    "sliding_layers",
    "text",
    "texts",
    "whole",
    "wholes",
]
