"""The ggml backend: ggml's kernels and devices through cffi."""

from __future__ import annotations

from .backend import Ggml
from .plugin import backbay_backend

__all__ = ["Ggml", "backbay_backend"]
