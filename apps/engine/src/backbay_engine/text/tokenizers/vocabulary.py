"""The vocabulary in GGUF metadata: its keys, with the names of llama.cpp's converter, and what is read from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay.discovery import open_model
from backbay.gguf import Config, Key, ModelFile, flag, numbers, text, texts, whole, wholes
from backbay.internals import cached_property

from ..token_kinds import TokenKind

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

N = TypeVar("N", np.int64, np.float64)
Source: TypeAlias = str | os.PathLike[str] | ModelFile | Config


@dataclass(frozen=True)
class TokenizerDefaults:
    """Defaults of a kind of tokenizer, for keys that the file lacks."""

    special: Mapping[str, int]
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False


DEFAULTS = {
    "gpt2": TokenizerDefaults({"bos": 11, "eos": 11}),
    "gemma4": TokenizerDefaults({}, add_bos=True),
    "llama": TokenizerDefaults({"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True),
    "bert": TokenizerDefaults(
        {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}, add_bos=True, add_sep=True
    ),
    "t5": TokenizerDefaults({"eos": 1, "unk": 2, "pad": 0}, add_eos=True),
}


@final
@dataclass
class Vocabulary:
    """Tokens with types and scores. Texts that are not UTF-8 hold surrogates, as in backbay.gguf."""

    kind: str
    pre: str
    texts: list[str]
    types: NDArray[np.int64]
    scores: NDArray[np.float64]
    special: dict[str, int]
    add_bos: bool
    add_eos: bool
    add_sep: bool
    add_space_prefix: bool
    config: Config

    @cached_property
    def ids(self) -> dict[str, int]:
        return {text: id for id, text in enumerate(self.texts)}

    def merges(self) -> Iterator[str]:
        """Lines of two parts; the first part may begin with a space."""
        return iter(MERGES.of(self.config))

    def of_type(self, *kinds: TokenKind) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.types, kinds)).tolist()
        return found


def open_config(source: Source) -> Config:
    """The metadata of a file; they stay valid after the file is closed."""
    if isinstance(source, Config):
        return source
    if isinstance(source, ModelFile):
        return source.metadata
    return open_model(source).metadata


def read_vocabulary(config: Config, defaults: TokenizerDefaults | None = None) -> Vocabulary:
    kind = KIND.of(config)
    given = defaults or DEFAULTS[kind]
    stored = TOKENS.of(config)
    count = len(stored)
    if not count:
        raise TOKENS.refuse(config, "one token at least")
    types = _per_token(config, TYPES, np.full(count, TokenKind.NORMAL, np.int64))
    return Vocabulary(
        kind=kind,
        pre=PRE.of(config, ""),
        texts=[text or f"[EMPTY_{id}]" for id, text in enumerate(stored)],
        types=np.where(np.isin(types, list(TokenKind)), types, TokenKind.UNDEFINED),
        scores=_per_token(config, SCORES, np.zeros(count)),
        special=_special(config, given, count),
        add_bos=ADD_BOS.of(config, given.add_bos),
        add_eos=ADD_EOS.of(config, given.add_eos),
        add_sep=ADD_SEP.of(config, given.add_sep),
        add_space_prefix=ADD_SPACE.of(config, given.add_space_prefix),
        config=config,
    )


def _per_token(config: Config, key: Key[NDArray[N]], default: NDArray[N]) -> NDArray[N]:
    values, count = key.of(config, default), len(default)
    if len(values) < count:
        raise key.refuse(config, f"an entry for each of the {count} tokens")
    return values[:count]


def _special(config: Config, defaults: TokenizerDefaults, count: int) -> dict[str, int]:
    """The ids of special tokens. An id outside the vocabulary is ignored, as in llama.cpp."""
    special = {name: id for name, id in defaults.special.items() if id < count}
    for name, keys in SPECIAL.items():
        for key in keys:
            id = key.of(config, None)
            if id is not None and 0 <= id < count:
                special[name] = id
    return special
