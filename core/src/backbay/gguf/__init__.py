"""Model files: a lazy, bounded reader of GGUF versions 2 and 3, by mmap."""

from __future__ import annotations

from .config import Config
from .nearest import nearest
from .reader import ModelFile, open
from .strings import Strings
from .tensors import TensorInfo

__all__ = ["Config", "ModelFile", "Strings", "TensorInfo", "nearest", "open"]
