"""Stop strings: end a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        self._held = ""
        self.stop: str | None = None  # the stop string that was found

    def push(self, text: str) -> str:
        """The text that is now certain; nothing after a stop string."""
        if not self._stops:
            return text
        if self.stop is not None:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            end, start = min(found)
            self.stop, self._held = text[start:end], ""
            return text[:start]
        certain = len(text) - possible_mark(text, self._stops)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """The text held back: the end of the text shows that it is no stop string."""
        held, self._held = self._held, ""
        return held


def possible_mark(text: str, marks: Sequence[str]) -> int:
    """The length of the text's end that may begin a mark, such as a stop string."""
    lengths = range(min(max(map(len, marks)) - 1, len(text)), 0, -1)
    return next((length for length in lengths if any(mark.startswith(text[-length:]) for mark in marks)), 0)
