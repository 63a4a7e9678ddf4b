"""Forks: they wait for what a child could not finish; in a child, all that the parent opened is closed, never freed."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  see PATIENCE
import logging  # noqa: F401
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, RLock, get_ident
from typing import Any, Protocol
from weakref import WeakSet

# Before a fork, the hooks that were registered last run first. Those of `logging` and `concurrent.futures` take locks,
# which a thread that keeps forks waiting may need: they are imported above, so that their hooks run after the gate's.
PATIENCE = 30.0  # seconds that a fork waits at most, as other hooks may take locks too

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


class ForkGate:
    """Keeps forks apart from kernels over arrays, imports, and the locks of libraries.

    A process that forks stops the threads of NumPy's BLAS first. A product that another thread runs just then waits for
    ever for these threads, and so does the fork. A module that another thread imports, and a lock that it holds, stay
    so in the child for ever.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # taken as such: Ctrl-C may leave a Condition locked that is entered itself
        self._changed = Condition(self._lock)
        self._inside: dict[int, int] = {}  # threads that keep forks waiting, and how many blocks each is in
        self.forks = 0  # that wait, or are under way

    @contextmanager
    def without_forks(self) -> Iterator[None]:
        """A block, or a decorated function, that imports, or takes locks of the process: forks of other threads wait.

        It must be short, or call `let_forks_pass`, and must not wait for a thread that may fork.
        """
        lock, thread, inside = self._lock, get_ident(), False
        try:
            with lock:
                self._changed.wait_for(lambda: not self.forks or thread in self._inside)
                self._inside[thread] = self._inside.get(thread, 0) + 1
                inside = True
            yield
        finally:
            if inside:
                with lock:  # no call before the change, or Ctrl-C could come first
                    if thread in self._inside:  # else Ctrl-C came while forks passed
                        if self._inside[thread] > 1:
                            self._inside[thread] -= 1
                        else:
                            del self._inside[thread]
                            self._changed.notify_all()

    def let_forks_pass(self) -> None:
        """Between two kernels: wait for the forks that wait for this thread."""
        thread = get_ident()
        with self._lock:
            # Kernels inside a larger block of this thread, which keeps forks waiting, let none pass.
            if self._inside.get(thread) == 1:
                del self._inside[thread]
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self.forks)
                self._inside[thread] = 1

    def before_fork(self) -> None:
        thread = get_ident()
        with self._lock:
            self.forks += 1
            self._changed.wait_for(lambda: self._inside.keys() <= {thread}, PATIENCE)  # a kernel may fork

    def after_fork_in_parent(self) -> None:
        with self._lock:
            self.forks -= 1
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Only the thread that forked is here; it may be in the midst of a block."""
        thread = get_ident()
        self._lock = RLock()
        self._changed, self.forks = Condition(self._lock), 0
        self._inside = {thread: self._inside[thread]} if thread in self._inside else {}
        for opened in list(_opened):
            opened.after_fork(REASON)


GATE = ForkGate()
without_forks = GATE.without_forks

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=GATE.before_fork,
        after_in_parent=GATE.after_fork_in_parent,
        after_in_child=GATE.after_fork_in_child,
    )
