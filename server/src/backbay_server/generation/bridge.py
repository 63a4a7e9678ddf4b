"""The bridge from the engine's threads to the event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from typing import Any, final


@final
class Bridge:
    """Calls functions in the event loop. All calls of one step of the engine cost one wake-up of the loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop, self._calls, self._woken = loop, deque[tuple[Callable[[Any], None], Any]](), False

    def call(self, function: Callable[[Any], None], value: Any) -> None:
        """Call the function with the value in the event loop, after earlier calls. Any thread may ask for it."""
        self._calls.append((function, value))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop is closed: nobody waits any more
                self._calls.clear()

    def _deliver(self) -> None:
        self._woken = False  # first, so that a call from now on wakes the loop again
        while self._calls:
            function, value = self._calls.popleft()
            function(value)
