"""A flag that threads set, and wait for."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Lock
from typing import final


@final
class Flag:
    """What `threading.Event` is, for threads that Ctrl-C may interrupt: threads share no lock that could stay locked."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[Lock] = deque()  # a lock of each waiting thread, which `set` opens

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for waiter in tuple(self._waiting):
            with suppress(RuntimeError):  # another thread has opened it
                waiter.release()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set, for `timeout` seconds at most; returns whether it was."""
        waiter = Lock()
        waiter.acquire()
        self._waiting.append(waiter)
        try:
            return self._is_set or waiter.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        finally:
            self._waiting.remove(waiter)
