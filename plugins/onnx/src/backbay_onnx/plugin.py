"""The module of the entry points."""

from __future__ import annotations

from backbay import Backend, hookimpl

from .adapter.backend import OrtBackend
from .backend import OnnxBackend


@hookimpl
def backbay_backend(name: str) -> type[Backend]:
    return OrtBackend if name == "ort" else OnnxBackend
