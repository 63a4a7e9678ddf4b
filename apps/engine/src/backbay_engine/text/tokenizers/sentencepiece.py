"""SentencePiece's two models, as in llama.cpp: byte-pair encoding, and unigram.

Byte-pair encoding merges the neighbours whose token has the best score. The library `tokenizers` ranks pairs instead of
tokens, and so differs where two pairs make the same token. Unigram cuts a text into the tokens with the best total score.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay.gguf import Config

from ..token_kinds import TokenKind
from .decoding import SPACE
from .vocabulary import CHARSMAP, MERGE_SPACES, SPECIAL, Vocabulary

_WORD: Final = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_PENALTY: Final = 10.0  # an unknown character scores this much less than the worst token


@final
class SentencePiece:
    """The encoder that merges pieces by their scores, as Llama 2's, for texts without special tokens."""

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
    """The encoder that takes the likeliest pieces of a text, as T5's, for texts without special tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        config = vocabulary.config
        if "unk" not in vocabulary.special:
            raise SPECIAL["unk"][0].refuse(config, "the id of the unknown token, which kind 't5' needs,")
        rules = CHARSMAP.of(config, None)
        self._charsmap = None if rules is None or not len(rules) else Normalizer(rules, config)
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


# the next node, and the replacement if a rule ends there
Transition: TypeAlias = tuple[int, str | None] | None

_END = 1 << 31  # marks a unit that holds the offset of a replacement
_MAX_KNOWN = 1 << 16  # transitions remembered
_ANY = re.compile("(?s).")
_BESIDE_ASCII = re.compile(r"[^ -~]|[ -~](?=[^ -~])")  # where a rule with non-ASCII characters may begin


@final
class Normalizer:
    """The normalizer of a sentencepiece model: it replaces, from left to right, the longest sequence of characters that has a rule.

    The rules are a trie in a double array of 32-bit units, as darts-clone packs it.
    """

    def __init__(self, data: NDArray[np.int64], config: Config) -> None:
        self._config = config
        raw = data.astype(np.uint8).tobytes()
        size = int.from_bytes(raw[:4], "little")
        if len(raw) < 9 or size < 4 or size % 4 or 4 + size >= len(raw):
            expected = f"more bytes than {len(raw)}, for {size} bytes of rules and their replacements,"
            raise CHARSMAP.refuse(config, expected)
        self._units: list[int] = np.frombuffer(raw, "<u4", size // 4, 4).tolist()
        self._replacements = raw[4 + size :]
        self._root = _base(self._units[0])
        self._known: dict[tuple[int, str], Transition] = {}
        self._candidate = _ANY if self._has_ascii() else _BESIDE_ASCII

    def apply(self, text: str) -> str:
        pieces: list[str] = []
        done, at, search = 0, 0, self._candidate.search
        while (match := search(text, at)) is not None:
            start = match.start()
            end, written = self._longest(text, start)
            if written is not None:
                pieces += text[done:start], written
                done = end
            at = end
        return "".join([*pieces, text[done:]]) if pieces else text

    def _longest(self, text: str, start: int) -> tuple[int, str | None]:
        """The end of the longest rule at `start`, and its replacement; without a rule, the end of one character."""
        end, written, node = start + 1, None, self._root
        for at in range(start, len(text)):
            step = self._step(node, text[at])
            if step is None:
                break
            node, found = step
            if found is not None:
                end, written = at + 1, found
        return end, written

    def _step(self, node: int, character: str) -> Transition:
        key = node, character
        if key not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = self._walk(node, character)
        return self._known[key]

    def _walk(self, node: int, character: str) -> Transition:
        unit = 0
        for byte in character.encode():
            unit = self._unit(node ^ byte)
            if not byte or unit & (_END | 0xFF) != byte:
                return None
            node ^= byte ^ _base(unit)
        return node, self._replacement(self._unit(node) & ~_END) if unit & 0x100 else None

    def _unit(self, index: int) -> int:
        """A unit; out of range, a unit that is no child of any node."""
        return self._units[index] if index < len(self._units) else _END

    def _replacement(self, begin: int) -> str:
        end = self._replacements.find(b"\0", begin)
        if end < 0:
            expected = f"a zero byte after the replacement at byte {begin} of {len(self._replacements)}"
            raise CHARSMAP.refuse(self._config, expected)
        return self._replacements[begin:end].decode("utf-8", "replace")

    def _has_ascii(self) -> bool:
        """Whether a rule is a printable ASCII character, or begins with two."""
        printable = [chr(code) for code in range(0x20, 0x7F)]
        steps = [step for step in (self._step(self._root, first) for first in printable) if step is not None]
        pairs = any(self._step(node, second) is not None for node, _ in steps for second in printable)
        return pairs or any(written is not None for _, written in steps)


def _base(unit: int) -> int:
    """The base of a node's children: child = node ^ base ^ byte."""
    return (unit >> 10) << ((unit & 0x200) >> 6)


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
