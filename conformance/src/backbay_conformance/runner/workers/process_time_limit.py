"""The time that a worker had: time in which no processor was free for it does not count."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

LOOK = 0.5
"""Seconds between two looks. A longer pause was one of this process, too, such as a suspended machine's."""

FIRST_LOOK = 0.02
"""Seconds until the first look: most answers come sooner, and the system need not be asked about their process."""


class ProcessTimeLimit:
    """A limit of a process's seconds. Those in which it, its child, or this process got no processor do not count.

    Where the system does not tell how long a process waits for a processor, all seconds count.
    """

    def __init__(self, process: int, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._last, self._used = time.monotonic(), 0.0
        self._held: dict[str, float] | None = None  # unknown until the first look

    @property
    def pause(self) -> float:
        return max(0.0, min(FIRST_LOOK if self._held is None else LOOK, self._seconds - self._used))

    @property
    def over(self) -> bool:
        """Whether the process has used up its seconds, as of now."""
        now, held = time.monotonic(), waited(self._process)
        passed = min(now - self._last, FIRST_LOOK if self._held is None else 2 * LOOK)
        before = held if self._held is None else self._held
        longest = max((seconds - before.get(thread, 0.0) for thread, seconds in held.items()), default=0.0)
        self._used += max(0.0, passed - longest)
        self._last, self._held = now, held
        return self._used >= self._seconds


def waited(process: int) -> dict[str, float]:
    """By thread, also of child processes, the seconds in which it was ready to run, but did not.

    A scenario may wait for a process of its own. Empty where the system does not tell.
    """
    found: dict[str, float] = {}
    for thread in Path(f"/proc/{process}/task").glob("*"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        with suppress(OSError):  # as above, or the system does not tell the children
            for child in (thread / "children").read_text().split():
                found.update(waited(int(child)))
    return found
