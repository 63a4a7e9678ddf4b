"""Cancelling a compute that ggml runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from backbay.plan import Cancel

from .abi import Ptr

ABORTED = 1  # of enum ggml_status, 0 is success
POLL_SECONDS = 0.002  # how soon a cancelled compute notices


@contextmanager
def watching(flag: Ptr, cancel: Cancel | None) -> Iterator[None]:
    """While this lasts, a set `cancel` raises the flag by which the CPU's threads stop at the next node."""
    if cancel is None:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            if cancel.is_set():
                flag[0] = b"\1"
                return

    watcher = threading.Thread(target=watch, name="backbay-ggml-cancel", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        flag[0] = b"\0"
