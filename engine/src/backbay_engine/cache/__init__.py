"""What a model remembers: caches for attention, for encoders and for recurrent layers."""

from .causal import Causal
from .contract import Bound, Cache, History, Plan, Shift, Sizes
from .encoder import Encoder
from .recurrent import Recurrent, RecurrentBound
from .wrapper import Wrapper, WrapperBound

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
