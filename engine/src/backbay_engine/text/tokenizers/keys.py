"""The keys of vocabularies, with the names of llama.cpp's converter, and the values that are possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from backbay.gguf import Key, flag, numbers, text, texts, whole, wholes

_PREFIX: Final = "tokenizer.ggml."
_LARGEST_ID: Final = (1 << 32) - 1  # converters write -1 and this number for no token

KIND = text(f"{_PREFIX}model")
PRE = text(f"{_PREFIX}pre")
TOKENS = texts(f"{_PREFIX}tokens")
TYPES = wholes(f"{_PREFIX}token_type", -(1 << 31))  # unknown types are undefined ones
SCORES = numbers(f"{_PREFIX}scores")
MERGES = texts(f"{_PREFIX}merges")
CHARSMAP = wholes(f"{_PREFIX}precompiled_charsmap", -128, 255)  # bytes, signed or not
SUPPRESSED = wholes(f"{_PREFIX}suppress_tokens", -1, _LARGEST_ID)

ADD_BOS = flag(f"{_PREFIX}add_bos_token")
ADD_EOS = flag(f"{_PREFIX}add_eos_token")
ADD_SEP = flag(f"{_PREFIX}add_sep_token")
ADD_SPACE = flag(f"{_PREFIX}add_space_prefix")
MERGE_SPACES = flag(f"{_PREFIX}remove_extra_whitespaces")
LOWERCASE = flag(f"{_PREFIX}normalizer.lowercase")
STRIP_ACCENTS = flag(f"{_PREFIX}normalizer.strip_accents")

NAME = text("general.name")
TEMPLATE = text("tokenizer.chat_template")


def _ids(*names: str) -> tuple[Key[int], ...]:
    return tuple(whole(f"{_PREFIX}{name}_token_id", -1, _LARGEST_ID) for name in names)


# With the converter's spelling; the last key that a file has counts.
SPECIAL: Mapping[str, tuple[Key[int], ...]] = {
    "bos": _ids("cls", "bos"),
    "eos": _ids("eos"),
    "eot": _ids("eot"),
    "eom": _ids("eom"),
    "unk": _ids("unknown"),
    "sep": _ids("seperator"),
    "pad": _ids("padding"),
    "mask": _ids("mask"),
    "fim_pad": _ids("fim_pad"),
    "fim_rep": _ids("fim_rep"),
    "fim_sep": _ids("fim_sep"),
    "fim_pre": _ids("prefix", "fim_pre"),
    "fim_suf": _ids("suffix", "fim_suf"),
    "fim_mid": _ids("middle", "fim_mid"),
}
