"""The module of the entry point."""

from __future__ import annotations

from backbay import Backend, hookimpl

from .backend import CpuRef


@hookimpl
def backbay_backend() -> type[Backend]:
    return CpuRef
