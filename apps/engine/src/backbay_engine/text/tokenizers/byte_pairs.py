"""Byte-pair encoding, by the library `tokenizers`: merges the pairs of a word in the order of the file's list."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from backbay.internals import without_forks

from .decoding import SPACE
from .pretokenizers import PreTokenizer
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import tokenizers

_NOTHING = " nothing "  # the unknown token; words contain no spaces at this stage
_LONG = 1 << 14  # longer texts gain more from encode_batch_fast than its thread costs
_LINES = re.compile(r"[^\n]+|\n+")
_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs, which are no text


@final
class BytePairEncoder:
    """The encoder of byte pairs, as GPT-2's, for texts without special tokens. The library's encoder, slow to make, is made for the first text."""

    def __init__(self, vocabulary: Vocabulary, pre: PreTokenizer) -> None:
        self._vocabulary, self._pre = vocabulary, pre
        self._making = Lock()
        self._made: tokenizers.Tokenizer | None = None
        self._unknown = len(vocabulary.texts)  # an id for text that no token spells

    def encode(self, text: str, _after_special: bool) -> list[int]:
        if self._pre.byte_level:
            return self._encode(text)
        return self._encode_lines(text.replace(" ", SPACE))

    def _encode(self, text: str) -> list[int]:
        encoder = self._encoder()
        if len(text) < _LONG:
            ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
        else:
            ids = encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        # Unknown text is left out here; if the library left it out, its neighbours would merge.
        return [id for id in ids if id != self._unknown] if self._unknown in ids else ids

    def _encode_lines(self, text: str) -> list[int]:
        """A run of newlines becomes its own token if there is one, whatever the merges say."""
        ids: list[int] = []
        for line in _LINES.findall(text):
            whole = self._vocabulary.ids.get(line) if line[0] == "\n" else None
            ids.extend(self._encode(line) if whole is None else (whole,))
        return ids

    def _encoder(self) -> tokenizers.Tokenizer:
        if self._made is None:
            with without_forks(), self._making:
                self._made = self._made or self._make()
        return self._made

    def _make(self) -> tokenizers.Tokenizer:
        from tokenizers import Regex, Tokenizer
        from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

        with _no_collection():
            encoder = Tokenizer(self._model())
        steps: list[Any] = [Split(Regex(each), "isolated") for each in self._pre.regexes()]
        if self._pre.byte_level:
            steps.append(ByteLevel(add_prefix_space=False, use_regex=False))
        encoder.pre_tokenizer = Sequence(steps)
        return encoder

    def _model(self) -> tokenizers.models.BPE:
        from tokenizers.models import BPE

        ids = self._vocabulary.ids | {_NOTHING: self._unknown}
        lines = list(dict.fromkeys(self._vocabulary.merges()))  # of two equal merges the first counts
        options = {
            "ignore_merges": self._pre.ignore_merges,
            "byte_fallback": not self._pre.byte_level,
            "unk_token": _NOTHING,
        }
        try:
            pairs: list[Any] = [tuple(line.split(" ", 1)) for line in lines]
            return BPE(ids, pairs, **options)
        except Exception:  # noqa: BLE001 - the library raises a plain Exception for a merge of unknown parts
            ids = {text: id for text, id in ids.items() if not _HALVES.search(text)}
            return BPE(ids, list(_possible(ids, lines)), **options)


def _possible(ids: Mapping[str, int], lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The merges of two tokens into a token; others have no effect."""
    for line in lines:
        cut = line.find(" ", 1)
        first, second = line[:cut], line[cut + 1 :]
        if cut > 0 and first in ids and second in ids and first + second in ids:
            yield first, second


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: searching half a million new tuples for cycles would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
