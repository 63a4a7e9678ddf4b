"""Work done while the backend computes a step."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeAlias, final

Mask: TypeAlias = bytes | None
Task: TypeAlias = tuple[Future[Mask], Callable[[], Mask]]


@final
class Ahead:
    """Computes masks in a thread of its own, which starts with the first of them."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread: Thread | None = None

    def compute(self, mask: Callable[[], Mask]) -> Future[Mask]:
        """Begin to compute a mask."""
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
        while (task := self._tasks.get()) is not None:
            future, mask = task
            try:
                future.set_result(mask())
            except BaseException as error:  # noqa: BLE001  the request gets it
                future.set_exception(error)
            del task, future, mask  # nothing is held while the thread waits
