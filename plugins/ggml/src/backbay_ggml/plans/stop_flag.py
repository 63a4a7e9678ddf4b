"""The flag by which ggml's CPU threads are stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from backbay.plugin import Cancel, stop_when_cancelled

from ..library.abi import Ptr, ffi

ABORTED = 1  # of enum ggml_status, where 0 is success


@final
class StopFlag:
    """A flag in C, with the callback that reads it; ggml calls it between two ops."""

    def __init__(self) -> None:
        self.data: Ptr = ffi.new("char[2]")
        # strlen of the flag is true once its first byte is set: a callback without Python.
        self.callback: Any = ffi.cast("void *", ffi.addressof(ffi.dlopen(None), "strlen"))

    @contextmanager
    def watching(self, cancel: Cancel | None) -> Iterator[None]:
        """While this lasts, a set `cancel` raises the flag."""
        try:
            with stop_when_cancelled(cancel, lambda: self._set(b"\1")):
                yield
        finally:
            self._set(b"\0")

    def _set(self, value: bytes) -> None:
        self.data[0] = value
