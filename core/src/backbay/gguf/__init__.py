"""Model files: a lazy, bounded reader of GGUF versions 2 and 3. Headers are read, weights are mapped."""

from __future__ import annotations

from .config import Config
from .reader import ModelFile, open
from .strings import Strings
from .suggestions import nearest
from .tensors import TensorInfo

__all__ = ["Config", "ModelFile", "Strings", "TensorInfo", "nearest", "open"]
