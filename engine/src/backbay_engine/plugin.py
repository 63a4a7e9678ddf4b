"""The door for authors of models: with `backbay` and `backbay_engine`, all that an architecture may import.

Nothing else is promised: other modules may move in any release. docs/add-a-model.md shows how the names are used.
"""

from __future__ import annotations

from .cache import (
    BoundCache,
    BoundLayeredCache,
    BoundRecurrentCache,
    Cache,
    CachePlan,
    CacheSizes,
    CausalCache,
    EncoderCache,
    History,
    LayeredCache,
    RecurrentCache,
    Shift,
)
from .cache.encoder import BoundEncoderCache
from .models import Model, architectures, load_model
from .models.batch import Batch
from .models.decoder import Decoder, DecoderBlock
from .models.nn import (
    Attention,
    Block,
    Embedding,
    Experts,
    Factors,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    Linear,
    Projection,
    RMSNorm,
    Rope,
    Shape,
    Weights,
    attend,
    block_count,
    feed_forward_of,
    per_layer,
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
    "BoundRecurrentCache",
    "Cache",
    "CachePlan",
    "CacheSizes",
    "CausalCache",
    "Decoder",
    "DecoderBlock",
    "Embedding",
    "EncoderCache",
    "Experts",
    "Factors",
    "FeedForward",
    "GatedFeedForward",
    "History",
    "LayerNorm",
    "LayeredCache",
    "Linear",
    "Model",
    "Projection",
    "RMSNorm",
    "RecurrentCache",
    "Rope",
    "Shape",
    "Shift",
    "Step",
    "StepCache",
    "Weights",
    "architectures",
    "attend",
    "block_count",
    "feed_forward_of",
    "load_model",
    "per_layer",
    "prompt_step",
    "sliding_layers",
]
