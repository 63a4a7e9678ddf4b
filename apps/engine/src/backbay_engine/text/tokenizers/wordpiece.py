"""WordPiece, as in llama.cpp: cuts each word of the normalized text into its longest tokens, from left to right.

The vocabulary marks tokens that begin a word, not tokens that continue one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import final

from .decoding import SPACE
from .sentencepiece import WordCache
from .vocabulary import LOWERCASE, STRIP_ACCENTS, Vocabulary

# 0x2B920 is the bound of BERT's tokenizers; the Unicode block begins earlier
_IDEOGRAPH = re.compile(
    "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b920-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]"
)
_NO_SPACES = "\x1c\x1d\x1e\x1f"  # only Python counts them as spaces


@final
class WordPiece:
    """The encoder of words by their longest pieces, as BERT's, for texts without special tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        config = vocabulary.config
        lowercase = LOWERCASE.of(config, True)
        strip_accents = STRIP_ACCENTS.of(config, lowercase)
        self._characters = _Characters(lowercase, strip_accents)
        self._ids = vocabulary.ids
        self._longest = max(map(len, vocabulary.texts))
        self._unknown = [vocabulary.special["unk"]] if "unk" in vocabulary.special else []
        self._known = WordCache(self._pieces)

    def encode(self, text: str, _after_special: bool) -> list[int]:
        words = text.translate(self._characters).split(" ")
        return self._known.ids(SPACE + word for word in words if word)

    def _pieces(self, word: str) -> list[int]:
        pieces: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                id = self._ids.get(word[start:end])
                if id is not None:
                    pieces.append(id)
                    start = end
                    break
            else:
                return self._unknown
        return pieces


class _Characters(dict[int, str]):
    """Normalized characters, for str.translate; each is computed once."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase, self._strip_accents = lowercase, strip_accents

    def __missing__(self, code: int) -> str:
        made = self[code] = self._make(chr(code))
        return made

    def _make(self, char: str) -> str:
        if self._strip_accents:
            char = unicodedata.normalize("NFD", char)[0]
        if char.isspace() and char not in _NO_SPACES:
            return " "
        category = unicodedata.category(char)
        if char in "\0\ufffd" or category in {"Cc", "Cf", "Co", "Cs"}:
            return ""
        if self._strip_accents and category[0] == "M":
            return ""
        shown = char.lower()[0] if self._lowercase else char
        alone = category[0] == "P" or (category[0] == "S" and char < "\x7f")
        return f" {shown} " if alone or _IDEOGRAPH.match(char) else shown
