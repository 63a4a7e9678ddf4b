"""Turns of threads: a context, and all contexts of its backend, serve one thread at a time.

Ctrl-C may come after any call, and must not leave a lock held. `with lock:` is safe, as no signal is handled between its
steps; `lock.acquire()`, and an `__enter__` written in Python, are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from ..errors import ContextBusyError
from ..memory.starvation import raise_if_starved

if TYPE_CHECKING:
    from .recording import Recording

P = ParamSpec("P")
T = TypeVar("T")


class Lockable(Protocol):
    """A lock of the module `threading`, of either kind."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


def in_turn(step: Callable[Concatenate[Recording, P], T]) -> Callable[Concatenate[Recording, P], T]:
    """Let a method, such as compute, hold the locks of its context and of the backend."""

    @wraps(step)
    def locked(recording: Recording, /, *args: P.args, **keywords: P.kwargs) -> T:
        if recording.in_use.locked():
            raise ContextBusyError("the context is in use by another thread; use one context per thread")
        backend = recording.backend
        with recording.in_use, backend.lock:
            backend.busy += 1
            try:
                if backend.dropped:
                    backend.release_dropped()
                recording.check_usable()
                return step(recording, *args, **keywords)
            except (OSError, ImportError, RuntimeError) as error:
                raise_if_starved(error, f"backend {backend.name}")
                raise
            finally:
                backend.busy -= 1

    return locked


def run_if_free(lock: Lockable, step: Callable[[], object]) -> bool:
    """Run a step with a lock; do nothing, and return False, if the lock is held."""
    acquired: list[bool] = []
    try:
        # One call, before or after which a signal is handled: so `acquired` always tells the truth.
        acquired.extend(map(lock.acquire, (False,)))
        if acquired[0]:
            step()
        return acquired[0]
    finally:
        if True in acquired:
            lock.release()
