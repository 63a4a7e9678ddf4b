"""The vocabulary of a file of whisper.cpp: bytes by rank, without merges and marks, which follow from the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ..text.token_kinds import TokenKind
from ..text.tokenizers.decoding import byte_alphabet
from ..text.transcripts.languages import NAMES

LETTERS: Final = {byte: letter for letter, byte in byte_alphabet().items()}
END: Final = b"<|endoftext|>"
ENGLISH_END: Final = 50256  # of published models that know English alone
BEFORE: Final = "translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"
LATEST_BEGIN: Final = 50  # the first time is a second at most
MUSIC: Final = "♩♪♫♬♭♮♯"
_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
SYMBOLS: Final = ('"', *"#()*+/:;<=>@[\\]^_`{|}~「」『』", *_GROUPS.split())
"""What nobody speaks: the reference's program never writes these, alone or behind a space."""


@lru_cache(2)  # a file is opened for its text and for its encoder
def whisper_tokens(words: tuple[bytes, ...], count: int, positions: int) -> Mapping[str, Any]:
    """The keys of a vocabulary of `count` tokens, the last of which are times, one more than there are positions."""
    end = words.index(END) if END in words else len(words)
    ranks = {word: id for id, word in enumerate(words[:end]) if word}
    marks = _marks(end, count - positions - 1, positions)
    tokens = [_spelled(word) for word in words[:end]] + marks
    tokens = (tokens + [f"<|extra_{id}|>" for id in range(len(tokens), count)])[:count]
    kinds = np.full(count, TokenKind.CONTROL, np.int32)
    kinds[:end] = [TokenKind.NORMAL if word else TokenKind.UNUSED for word in words[:end]]
    silent = {
        *_unspoken(ranks),
        *(end + n for n, mark in enumerate(marks[:-positions]) if mark[2:-2] in BEFORE[:-1]),
    }
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": _merges(ranks),
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "whisper.transcript.multilingual": end != ENGLISH_END,
        "whisper.transcript.latest_begin": LATEST_BEGIN,
        "whisper.transcript.suppressed_ids": np.array(sorted({*silent, end + 1}), np.int32),
    }


def _marks(end: int, times: int, positions: int) -> list[str]:
    """The marks from the end of a text on: languages between the start and the tasks, then times."""
    languages = list(NAMES)
    count = max(0, times - len(BEFORE) - end - 2)
    languages = (languages + [f"language_{n}" for n in range(count)])[:count]
    names = ["endoftext", "startoftranscript", *languages, *BEFORE]
    return [f"<|{name}|>" for name in (*names, *(f"{n * 0.02:.2f}" for n in range(positions + 1)))]


def _spelled(word: bytes) -> str:
    return "".join(LETTERS[byte] for byte in word)


def _merges(ranks: Mapping[bytes, int]) -> list[str]:
    """The pairs that tokens are made of, in the order of their ranks."""
    pairs = (_pair(word, ranks, rank) for word, rank in ranks.items() if len(word) > 1)
    return [" ".join(map(_spelled, pair)) for pair in pairs if len(pair) == 2]


def _pair(word: bytes, ranks: Mapping[bytes, int], rank: int) -> Sequence[bytes]:
    """The two tokens that become a word; mostly, only two tokens of lower ranks can."""
    pairs = ((word[:at], word[at:]) for at in range(1, len(word)))
    known = [pair for pair in pairs if max(ranks.get(part, rank) for part in pair) < rank]
    return known[0] if len(known) == 1 else _parts(word, ranks, rank)


def _parts(word: bytes, ranks: Mapping[bytes, int], below: int) -> list[bytes]:
    """The tokens that merges of lower ranks make of a word's bytes."""
    parts = [word[at : at + 1] for at in range(len(word))]
    while len(parts) > 1:
        found = [ranks.get(a + b, below) for a, b in pairwise(parts)]
        least = min(found)
        if least >= below:
            break
        at = found.index(least)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _unspoken(ranks: Mapping[bytes, int]) -> set[int]:
    """Tokens of symbols; a hyphen and an apostrophe are spoken within words, not behind a space."""
    whole = [*SYMBOLS, *(f" {symbol}" for symbol in SYMBOLS), " -", " '"]
    found = {ranks[text.encode()] for text in whole if text.encode() in ranks}
    begun = (_parts(text.encode(), ranks, len(ranks))[0] for each in MUSIC for text in (each, f" {each}"))
    return found | {ranks[part] for part in begun if part in ranks}
