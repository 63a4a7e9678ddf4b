"""Forks: in a forked child, everything that the parent opened is closed, and is never freed there."""

from __future__ import annotations

import os
from typing import Any, Protocol
from weakref import WeakSet

REASON = "; it was opened before a fork: load it in the child process, or start the child by spawn"


class Opened(Protocol):
    """An object that stops working in a forked child: its threads and locks stay behind in the parent."""

    def after_fork(self, reason: str) -> None:
        """Become closed, without waiting for a lock, and without freeing native memory.

        Messages of later errors end with the reason.
        """


_opened: WeakSet[Any] = WeakSet()


def close_after_fork(opened: Opened) -> None:
    """Call `opened.after_fork(reason)` in every child that this process forks from now on."""
    _opened.add(opened)


def keep_forever(thing: object) -> None:
    """Let a thing, and all that it refers to, outlive the interpreter: freeing it would wait for lost threads."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _after_fork() -> None:
    for opened in list(_opened):
        opened.after_fork(REASON)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
