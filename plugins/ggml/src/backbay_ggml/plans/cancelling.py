"""Cancelling a compute that ggml runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backbay.plugin import Cancel

from ..library.abi import NULL, Ptr, ffi

ABORTED = 1  # of enum ggml_status, 0 is success
POLL_SECONDS = 0.002  # how soon a cancelled compute notices
PART = 32  # ops that a device gets at a time, where it may have to stop; it is waited for after each part


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


@contextmanager
def stopping(lib: Any, scheduler: Ptr, cancel: Cancel | None) -> Iterator[None]:
    """While this lasts, a set `cancel` stops devices too: after the part of a run of ops that they are at."""
    if cancel is None:
        yield
        return
    seen = 0

    def divides(tensor: Ptr, before: bool, data: Ptr) -> bool:
        nonlocal seen
        if not before:  # a part was computed: whether to go on
            return not cancel.is_set()
        seen += 1
        return cancel.is_set() or seen % PART == 0  # whether a part ends here

    callback = ffi.callback("bool(ggml_tensor *, bool, void *)", divides)
    lib.ggml_backend_sched_set_eval_callback(scheduler, callback, NULL)
    try:
        yield
    finally:
        lib.ggml_backend_sched_set_eval_callback(scheduler, NULL, NULL)
