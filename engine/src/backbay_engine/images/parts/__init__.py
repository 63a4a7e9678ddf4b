"""The parts of encoders: each takes its tensors from a file by name; calling it traces it."""

from .attention import Groups, attend
from .block import Block, FeedForward, GatedFeedForward
from .clip import Clip
from .norm import Norm
from .patches import PatchEmbedding, cut
from .shape import EncoderShape, floats, present
from .shuffle import shuffled
from .siglip import Siglip, divided, places_in, stepped

__all__ = [
    "Block",
    "Clip",
    "EncoderShape",
    "FeedForward",
    "GatedFeedForward",
    "Groups",
    "Norm",
    "PatchEmbedding",
    "Siglip",
    "attend",
    "cut",
    "divided",
    "floats",
    "places_in",
    "present",
    "shuffled",
    "stepped",
]
