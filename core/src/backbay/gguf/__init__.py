"""Model files: a lazy, bounded reader of GGUF versions 2 and 3. Headers are read, weights are mapped."""

from __future__ import annotations

from backbay.errors import nearest

from .config import Config
from .keys import Key, choice, flag, number, numbers, text, texts, whole, wholes
from .reader import ModelFile, open
from .strings import Strings
from .tensors import TensorInfo

__all__ = [
    "Config",
    "Key",
    "ModelFile",
    "Strings",
    "TensorInfo",
    "choice",
    "flag",
    "nearest",
    "number",
    "numbers",
    "open",
    "text",
    "texts",
    "whole",
    "wholes",
]
