"""Stop strings: end a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from backbay import OptionError


@final
class StopMatcher:
    """Passes a text on up to the first stop string: the one that is complete first; of several, the longest.

    Text that may begin a stop string is held back; all other text is passed on at once.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        if isinstance(stops, str):
            raise OptionError(f"stops must be a list of strings, not the string {stops!r}; write [{stops!r}]")
        self._stops = tuple(dict.fromkeys(stops))
        if not all(self._stops):
            raise OptionError("a stop string must not be empty: it would end every text before it begins")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.stop: str | None = None  # the stop string that was found

    def push(self, text: str) -> str:
        """The text that is now certain; nothing after a stop string."""
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
        """The text held back: the end of the text shows that it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """The length of the text's end that may begin a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0


def _find(text: str, stop: str) -> tuple[int, int] | None:
    start = text.find(stop)
    return None if start < 0 else (start + len(stop), start)
