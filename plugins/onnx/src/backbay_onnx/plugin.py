"""The module of the entry points."""

from __future__ import annotations

from backbay import Backend, hookimpl

from .backend import OnnxBackend


@hookimpl
def backbay_backend(name: str) -> type[Backend]:
    if name != "ort":
        return OnnxBackend
    from .adapter.backend import ProviderBackend  # which the other backend does not need

    return ProviderBackend
