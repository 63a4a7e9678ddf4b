"""A thread's turn with a context: no other thread uses the context, or any context of the backend, meanwhile."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, final

from ..errors import ContextBusyError
from ..memory.starvation import raise_if_starved

if TYPE_CHECKING:
    from .recording import Recording


@final
class Turn:
    """Holds a context's lock and its backend's: compiling takes turns, like computing. Each step takes one."""

    __slots__ = ("_backend", "_in_use", "_recording")

    def __init__(self, recording: Recording, in_use: threading.Lock) -> None:
        self._recording, self._backend, self._in_use = recording, recording.backend, in_use

    def __enter__(self) -> None:
        if not self._in_use.acquire(blocking=False):
            raise ContextBusyError("the context is in use by another thread; use one context per thread")
        backend = self._backend
        backend.lock.acquire()
        backend.busy += 1
        try:
            if backend.dropped:
                backend.release_dropped()
            self._recording.check_usable()
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, (OSError, ImportError, RuntimeError)):
                raise_if_starved(error, f"backend {self._backend.name}")
        finally:
            self._end()

    def _end(self) -> None:
        self._backend.busy -= 1
        self._backend.lock.release()
        self._in_use.release()
