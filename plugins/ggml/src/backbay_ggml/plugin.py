"""The entry point of the plugin `ggml`."""

from __future__ import annotations

from backbay import Backend, hookimpl

from .backend import Ggml


@hookimpl
def backbay_backend() -> type[Backend]:
    return Ggml
