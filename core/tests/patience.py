"""Waiting in tests: for what must come, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 300.0  # seconds, after which something hangs


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; AssertionError if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def is_running(pid: int) -> bool:
    """Whether a process runs; one that only its parent has not heard of yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class CountedLock:
    """A lock that counts how often a thread waited for it."""

    def __init__(self, lock: Any) -> None:
        self._lock, self.waits = lock, 0

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(False):
            return True
        self.waits += blocking
        return blocking and self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
