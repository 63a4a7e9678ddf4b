"""Model files: a lazy, bounded reader of GGUF versions 2 and 3. Headers are read, weights are mapped."""

from __future__ import annotations

from backbay.errors import nearest

from .header.content import Content, open_content
from .header.layout import ValueType
from .header.strings import Strings
from .header.tensors import Derived, TensorInfo
from .reader import ModelFile, open
from .values.config import Config
from .values.keys import Key, choice, flag, number, numbers, text, texts, whole, wholes

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
