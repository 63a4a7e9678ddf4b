"""The NumPy reference backend: the plainest code, the most exact numbers."""

from __future__ import annotations

from .backend import CpuRef
from .plugin import backbay_backend

__all__ = ["CpuRef", "backbay_backend"]
