"""Properties that are computed once, in programs that fork."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from threading import RLock
from typing import Any, TypeVar

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
