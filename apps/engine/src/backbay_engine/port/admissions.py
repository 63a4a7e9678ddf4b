"""Places for requests: for those that run, and for those that may wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import final

from ..arguments import whole_number
from ..errors import QueueFullError


@final
class Admissions:
    """The places for requests of one model: so many run, so many wait. Any thread may call any method.

    parallel    requests that run at the same time
    queue       requests that may wait; None: any number
    """

    def __init__(self, parallel: int, queue: int | None) -> None:
        self.parallel = parallel
        self.queue = None if queue is None else whole_number("queue", queue, 0)
        self._held: set[Admission] = set()
        self._lock = Lock()

    @property
    def held(self) -> int:
        return len(self._held)

    @contextmanager
    def taken(self) -> Iterator[Admission]:
        """A place for a request, which an error gives back; QueueFullError if none is left."""
        place = Admission(self._held)
        with self._lock:
            if self.queue is not None and len(self._held) >= self.parallel + self.queue:
                raise QueueFullError(
                    f"the queue is full: {self.parallel} requests run, {self.queue} wait; try again later",
                    self.queue,
                )
            self._held.add(place)
        try:
            yield place
        except BaseException:
            place.leave()
            raise


@final
class Admission:
    """The place of one request."""

    def __init__(self, held: set[Admission]) -> None:
        self._held = held

    def leave(self) -> None:
        """Give the place back. Doing it again does nothing; no lock is needed, so a signal or a fork may come."""
        self._held.discard(self)
