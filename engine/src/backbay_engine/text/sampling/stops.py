"""Ending a text at stop strings, wherever its pieces are cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from backbay import OptionError


@final
class StopMatcher:
    """Passes a text on up to the first stop: the one that is complete first, the longest of those.

    What may yet become a stop is held back, everything else is given at once.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        if isinstance(stops, str):
            raise OptionError(f"stops must be a list of strings, not the string {stops!r}; write [{stops!r}]")
        self._stops = tuple(dict.fromkeys(stops))
        if not all(self._stops):
            raise OptionError("a stop string must not be empty: it would end every text before it begins")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stop: str | None = None  # the one that was found

    def push(self, text: str) -> str:
        """What of the text so far may be shown and was not; nothing after a stop."""
        if not self._stops:
            return text
        if self.stop is not None:
            return ""
        text = self._held + text
        found = min(filter(None, (_find(text, stop) for stop in self._stops)), default=None)
        if found is not None:
            end, start = found
            self.stop, self._held = text[start:end], ""
            return text[:start]
        certain = len(text) - self._possible(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """What was held back, which the end of the text has shown to be no stop."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """How much of the end of a text a stop could begin with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


def _find(text: str, stop: str) -> tuple[int, int] | None:
    start = text.find(stop)
    return None if start < 0 else (start + len(stop), start)
