"""Masks, computed while the backend computes a step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias, final

from .handle import serve_here

Mask: TypeAlias = bytes | None


@final
class MaskThread:
    """Computes masks in a thread of its own, which starts with the first of them.

    It is a daemon, so it serves until the process has ended, and keeps no process: a mask is a caller's code. The threads
    of an executor end before others do, and take no work from then on.
    """

    def __init__(self, server: object = None) -> None:
        self._server = server
        self._tasks: SimpleQueue[tuple[Future[Mask], Callable[[], Mask]] | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(self, mask: Callable[[], Mask]) -> Future[Mask]:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="backbay masks", daemon=True)
            self._thread.start()
        future: Future[Mask] = Future()
        self._tasks.put((future, mask))
        return future

    def close(self) -> None:
        """Let the thread end."""
        self._tasks.put(None)

    def _run(self) -> None:
        if self._server is not None:
            serve_here(self._server)
        while (task := self._tasks.get()) is not None:
            future, mask = task
            try:
                future.set_result(mask())
            except BaseException as error:  # noqa: BLE001  the request gets it
                future.set_exception(error)
            del task, future, mask  # nothing is held while the thread waits
