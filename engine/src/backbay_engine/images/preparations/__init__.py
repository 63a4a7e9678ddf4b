"""How each family turns a picture into pixels: sizes, grids and order exactly as its reference processor."""

from .canvases import Anyres, Canvas, CanvasAndWhole
from .contract import Plan, Preparation
from .longest_edge import LongestEdge
from .slices import MergedSlices, Sliced, Slices
from .splits import Split
from .squares import CentreCrop, Squash
from .stretched import Qwen3Resize, SmartResize

__all__ = [
    "Anyres",
    "Canvas",
    "CanvasAndWhole",
    "CentreCrop",
    "LongestEdge",
    "MergedSlices",
    "Plan",
    "Preparation",
    "Qwen3Resize",
    "Sliced",
    "Slices",
    "SmartResize",
    "Split",
    "Squash",
]
