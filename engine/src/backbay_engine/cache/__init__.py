"""What a model remembers: caches for attention, for encoders and for recurrent layers."""

from .causal import Causal
from .contract import Bound, Cache, History, Plan, Shift, Sizes
from .encoder import Encoder
from .layered import Wrapper, WrapperBound
from .recurrent import Recurrent, RecurrentBound

__all__ = [
    "Bound",
    "Cache",
    "Causal",
    "Encoder",
    "History",
    "Plan",
    "Recurrent",
    "RecurrentBound",
    "Shift",
    "Sizes",
    "Wrapper",
    "WrapperBound",
]
