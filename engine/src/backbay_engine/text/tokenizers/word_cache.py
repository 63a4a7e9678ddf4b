"""A cache of words: texts repeat their words, so most need no second search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, final

_MOST: Final = 1 << 16  # words; then the cache starts anew
_LONGEST: Final = 64  # characters; longer words seldom come again


@final
class WordCache:
    """Words to ids, by a function that is called once for each word."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode
        self._known: dict[str, list[int]] = {}

    def ids(self, words: Iterable[str]) -> list[int]:
        ids: list[int] = []
        known = self._known
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode(word)
                if len(word) <= _LONGEST:
                    if len(known) >= _MOST:
                        known.clear()
                    known[word] = found
            ids += found
        return ids
