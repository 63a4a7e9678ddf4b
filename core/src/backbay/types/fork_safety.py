"""A property and an event that are safe where programs fork, and where Ctrl-C interrupts threads."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock
from typing import Any, TypeVar, final

T = TypeVar("T")


class cached_property(functools.cached_property[T]):  # noqa: N801  named as the one of functools
    """A property that is computed once.

    Python 3.11 holds one lock for all objects of a class while a value is computed. A forked child, in which the thread
    that holds the lock is lost, takes a new lock.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        super().__init__(function)
        if hasattr(self, "lock") and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self.lock = RLock()


@final
class InterruptSafeEvent:
    """A `threading.Event` for threads that Ctrl-C may interrupt: threads share no lock that could stay locked."""

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
