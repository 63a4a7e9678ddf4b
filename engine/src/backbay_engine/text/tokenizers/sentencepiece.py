"""SentencePiece's byte-pair encoding, as in llama.cpp: merges the neighbours whose token has the best score.

The library `tokenizers` ranks pairs instead of tokens, and so differs where two pairs make the same token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import final

from .token_bytes import SPACE
from .vocabulary import Vocabulary
from .word_cache import WordCache

_WORD = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")


@final
class SentencePiece:
    """Encodes texts without special tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._scores: list[float] = vocabulary.scores.tolist()
        self._prefix = SPACE if vocabulary.add_space_prefix else ""
        self._by_bytes = _Bytes(vocabulary)
        # If spaces only begin tokens, or are whole tokens, no merge crosses the boundary of a word.
        self._words = not any(SPACE in text.lstrip(SPACE) for text in vocabulary.texts)
        self._known = WordCache(self._merge)

    def encode(self, text: str, after_special: bool) -> list[int]:
        text = text.replace(" ", SPACE)
        if after_special:
            text = self._prefix + text
        return self._known.ids(_WORD.findall(text) if self._words else (text,))

    def _merge(self, word: str) -> list[int]:
        ids, scores = self._ids, self._scores
        symbols: list[str] = list(
            word
        )  # a merged symbol stands in its first place; its other places are empty
        after = list(range(1, len(symbols) + 1))
        before = list(range(-1, len(symbols) - 1))
        queue: list[tuple[float, int, int, str]] = []
        for left, pair in enumerate(map(str.__add__, symbols, symbols[1:])):
            if (id := ids.get(pair)) is not None:
                queue.append((-scores[id], left, left + 1, pair))
        heapify(queue)
        last = len(symbols)
        while queue:
            _, left, right, pair = heappop(queue)
            if (
                not symbols[left]
                or not symbols[right]
                or len(symbols[left]) + len(symbols[right]) != len(pair)
            ):
                continue  # a part was merged with another symbol before
            symbols[left], symbols[right] = pair, ""
            follower = after[left] = after[right]
            if follower < last:
                before[follower] = left
                if (id := ids.get(joined := pair + symbols[follower])) is not None:
                    heappush(queue, (-scores[id], left, follower, joined))
            leader = before[left]
            if leader >= 0 and (id := ids.get(joined := symbols[leader] + pair)) is not None:
                heappush(queue, (-scores[id], leader, left, joined))
        return self._spell(filter(None, symbols))

    def _spell(self, symbols: Iterable[str]) -> list[int]:
        """The ids of symbols; a symbol that is no token becomes its bytes."""
        spelled: list[int] = []
        find, add, by_bytes = self._ids.get, spelled.append, self._by_bytes
        for symbol in symbols:
            id = find(symbol)
            if id is None:
                spelled += by_bytes[symbol]
            else:
                add(id)
        return spelled


class _Bytes(dict[str, list[int]]):
    """The byte tokens of a character that no token spells, computed once."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        ids, unknown = vocabulary.ids, vocabulary.special.get("unk")
        found = {byte: ids.get(f"<0x{byte:02X}>", unknown) for byte in range(256)}
        self._of = {byte: id for byte, id in found.items() if id is not None}

    def __missing__(self, character: str) -> list[int]:
        made = self[character] = [self._of[byte] for byte in character.encode() if byte in self._of]
        return made
