"""SentencePiece's two models, as in llama.cpp: byte-pair encoding, and unigram.

Byte-pair encoding merges the neighbours whose token has the best score. The library `tokenizers` ranks pairs instead of
tokens, and so differs where two pairs make the same token. Unigram cuts a text into the tokens with the best total score.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, final

import numpy as np

from ...token_kinds import TokenKind
from .charsmap import Charsmap
from .decoding import SPACE
from .vocabulary import CHARSMAP, MERGE_SPACES, SPECIAL, Vocabulary
from .word_cache import WordCache

_WORD: Final = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_PENALTY: Final = 10.0  # an unknown character scores this much less than the worst token


@final
class SentencePiece:
    """Encodes texts without special tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._ids = vocabulary.ids
        self._scores: list[float] = vocabulary.scores.tolist()
        self._prefix = SPACE if vocabulary.add_space_prefix else ""
        self._by_bytes = _Bytes(vocabulary)
        self._words = _end_with_words(vocabulary.texts)
        self._known = WordCache(self._merge)

    def encode(self, text: str, after_special: bool) -> list[int]:
        text = text.replace(" ", SPACE)
        if after_special:
            text = self._prefix + text
        return self._known.ids(_WORD.findall(text) if self._words else (text,))

    def _merge(self, word: str) -> list[int]:
        ids, scores = self._ids, self._scores
        symbols = list(word)  # a merged symbol stands in its first place; its other places are empty
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
            first, second = symbols[left], symbols[right]
            if not first or not second or len(first) + len(second) != len(pair):
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
        find, by_bytes = self._ids.get, self._by_bytes
        for symbol in symbols:
            id = find(symbol)
            spelled += by_bytes[symbol] if id is None else (id,)
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


@final
class Unigram:
    """Encodes texts without special tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        config = vocabulary.config
        if "unk" not in vocabulary.special:
            raise SPECIAL["unk"][0].refuse(config, "the id of the unknown token, which kind 't5' needs,")
        rules = CHARSMAP.of(config, None)
        self._charsmap = None if rules is None or not len(rules) else Charsmap(rules, config)
        self._unknown = vocabulary.special["unk"]
        self._prefix = vocabulary.add_space_prefix
        self._merges_spaces = MERGE_SPACES.of(config, False)
        texts, types, scores = vocabulary.texts, vocabulary.types, vocabulary.scores
        normal = scores[types == TokenKind.NORMAL]
        self._unknown_score = float(normal.min(initial=0.0)) - _PENALTY
        scores = np.where(types == TokenKind.USER_DEFINED, 0.0, scores)
        usable = vocabulary.of_type(TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)
        self._tokens = {texts[id]: (float(scores[id]), id) for id in usable}
        self._longest: dict[str, int] = {}  # by character: the longest token that begins with it
        for text in self._tokens:
            self._longest[text[0]] = max(len(text), self._longest.get(text[0], 1))
        self._words = _end_with_words(self._tokens)
        self._known = WordCache(self._best)

    def encode(self, text: str, _after_special: bool) -> list[int]:
        spelled = self._spaced(text if self._charsmap is None else self._charsmap.apply(text))
        words = _WORD.findall(spelled) if self._words else [spelled] if spelled else []
        return self._joined(self._known.ids(words))

    def _spaced(self, text: str) -> str:
        """The text with spaces as tokens spell them, and one before the first word."""
        if self._merges_spaces:
            return "".join(SPACE + word for word in text.split(" ") if word)
        words = text.lstrip(" ")
        first = SPACE if self._prefix and words else ""
        return SPACE * (len(text) - len(words)) + first + words.replace(" ", SPACE)

    def _best(self, word: str) -> list[int]:
        size, tokens, longest = len(word), self._tokens, self._longest
        sums = [0.0] + [-inf] * size
        last = [(0, self._unknown)] * (size + 1)  # by end: the begin and the id of the last token
        for start in range(size):
            here = sums[start]
            for end in range(start + 1, min(size, start + longest.get(word[start], 1)) + 1):
                token = tokens.get(word[start:end])
                if token is None:
                    if end > start + 1:
                        continue
                    token = self._unknown_score, self._unknown
                if here + token[0] > sums[end]:
                    sums[end], last[end] = here + token[0], (start, token[1])
        ids, end = list[int](), size
        while end:
            end, id = last[end]
            ids.append(id)
        return ids[::-1]

    def _joined(self, ids: Iterable[int]) -> list[int]:
        """Adjacent unknown tokens become one."""
        found: list[int] = []
        for id in ids:
            if id != self._unknown or not found or found[-1] != id:
                found.append(id)
        return found


def _end_with_words(tokens: Iterable[str]) -> bool:
    """Whether spaces only begin tokens, or are whole tokens, so that no token crosses the boundary of a word."""
    return not any(SPACE in text.lstrip(SPACE) for text in tokens)
