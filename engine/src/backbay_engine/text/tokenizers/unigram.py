"""SentencePiece's unigram model, as in llama.cpp: cuts a text into the tokens with the best total score."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf
from typing import final

import numpy as np

from ..token_kinds import TokenKind
from .charsmap import Charsmap
from .keys import CHARSMAP, MERGE_SPACES, SPECIAL
from .token_bytes import SPACE
from .vocabulary import Vocabulary
from .word_cache import WordCache

_WORD = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_PENALTY = 10.0  # an unknown character scores this much less than the worst token


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
        # If spaces only begin tokens, or are whole tokens, no token crosses the boundary of a word.
        self._words = not any(SPACE in text.lstrip(SPACE) for text in self._tokens)
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
        """The tokens with the best total score."""
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
