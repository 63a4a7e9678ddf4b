"""Compares the tokenizers with llama.cpp's on random Unicode text: python compare_tokenizers.py VOCABULARY.gguf ...

Needs llama-cpp-python. Its source distribution has vocabularies in vendor/llama.cpp/models. The exit status is 1
if any text has other tokens, or any token other bytes, than with llama.cpp.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import llama_cpp

from backbay_engine.text.tokenizers import Tokenizer, tokenizer_from_gguf

PLANES = [(0x20, 0x7E)] * 6 + [
    *((0x00, 0x1F), (0x80, 0x24F), (0x300, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F)),
    *((0x1E00, 0x218F), (0x2190, 0x2BFF), (0x3000, 0x30FF), (0x3400, 0x9FFF), (0xA000, 0xD7A3)),
    *((0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x1F300, 0x1FAFF), (0x20000, 0x2FFFF), (0x0, 0x10FFFF)),
]
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u2003\u3000\u2028\u1680"
TURNS = [
    "'s",
    "'T",
    "'re",
    "'VE",
    "'ll",
    "\u2019s",
    "'\u017f",
    "\r\n",
    "\n\n",
    " \n",
    "/",
    "!!",
    "...",
    "<0x0A>",
    "\u2581",
]
CAPACITY = 1 << 18


def character(chance: random.Random) -> str:
    while True:
        char = chr(chance.randint(*chance.choice(PLANES)))
        if unicodedata.category(char) not in {
            "Cn",
            "Cs",
        }:  # what is assigned later, each has in a table of its own
            return char


def texts(chance: random.Random, words: list[str]) -> Iterator[str]:
    kinds = [
        lambda: chance.choice(SPACES) * chance.choice([1, 1, 2, 3, 17]),
        lambda: character(chance),
        lambda: "".join(chance.choices("0123456789", k=chance.randint(1, 8))),
        lambda: chance.choice(TURNS),
        lambda: "".join(chance.choices("abcdefghijklmnopqrstuvwxyzABCDEFG", k=chance.randint(1, 8))),
        lambda: chance.choice(words),
        lambda: " ",
    ]
    while True:
        yield "".join(chance.choice(kinds)() for _ in range(chance.choice([1, 2, 3, 8, 30])))


class LlamaCpp:
    """llama.cpp's tokenizer of a file."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.ids = (ctypes.c_int * CAPACITY)()
        self.bytes = ctypes.create_string_buffer(CAPACITY)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode()
        tokenize = llama_cpp.llama_tokenize
        count = tokenize(self.vocabulary, raw, len(raw), self.ids, CAPACITY, add_special, parse_special)
        return self.ids[:count]

    def token_bytes(self, id: int, special: bool) -> bytes:
        size = llama_cpp.llama_token_to_piece(self.vocabulary, id, self.bytes, CAPACITY, 0, special)
        return self.bytes.raw[:size]

    def ends(self, id: int) -> bool:
        return llama_cpp.llama_vocab_is_eog(self.vocabulary, id)

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


def compare(ours: Tokenizer, theirs: LlamaCpp, chance: random.Random, count: int) -> int:
    special = [ours.token_text(id) for id in sorted(ours.control_ids)[:50]]
    source = texts(chance, [*special, "the", "naive", "words"])
    parted = 0
    for _ in range(count):
        text, add, parse = next(source), chance.random() < 0.5, chance.random() < 0.5
        got, expected = (
            ours.encode(text, add_special=add, parse_special=parse),
            theirs.encode(text, add, parse),
        )
        if got != expected:
            parted += 1
            print(f"    {text!r}, add_special={add}, parse_special={parse}: {got}, llama.cpp {expected}")
    for id in range(ours.vocabulary_size):
        for flag in (False, True):
            if ours.token_bytes(id, special=flag) != theirs.token_bytes(id, flag):
                parted += 1
                print(
                    f"    token {id}: {ours.token_bytes(id, special=flag)!r}, {theirs.token_bytes(id, flag)!r}"
                )
        if (id in ours.end_ids) != theirs.ends(id):
            parted += 1
            print(f"    token {id} {ours.token_text(id)!r} ends with one of us only")
    return parted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("vocabularies", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    parted = 0
    for path in asked.vocabularies:
        theirs = LlamaCpp(path)
        differences = compare(tokenizer_from_gguf(path), theirs, random.Random(asked.seed), asked.count)
        theirs.close()
        parted += differences
        print(f"{path.name}: {differences} differences in {asked.count} texts and all tokens", flush=True)
    raise SystemExit(parted > 0)


if __name__ == "__main__":
    main()
