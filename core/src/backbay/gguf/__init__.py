"""Model files: a lazy, bounded reader of GGUF versions 2 and 3. Headers are read, weights are mapped."""

from __future__ import annotations

from backbay.errors import nearest

from .config import Config
from .content import Content, open_content
from .cursor import ValueType
from .keys import Key, choice, flag, number, numbers, text, texts, whole, wholes
from .metadata import Strings
from .reader import ModelFile, open
from .tensors import Derived, TensorInfo

__all__ = [
    "Config",
    "Content",
    "Derived",
    "Key",
    "ModelFile",
    "Strings",
    "TensorInfo",
    "ValueType",
    "choice",
    "flag",
    "nearest",
    "number",
    "numbers",
    "open",
    "open_content",
    "text",
    "texts",
    "whole",
    "wholes",
]
