"""The vocabulary in GGUF metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay.discovery import open_model
from backbay.gguf import Config, Key, ModelFile
from backbay.internals import cached_property

from ..token_kinds import TokenKind
from .keys import (
    ADD_BOS,
    ADD_EOS,
    ADD_SEP,
    ADD_SPACE,
    KIND,
    MERGES,
    PRE,
    SCORES,
    SPECIAL,
    TOKENS,
    TYPES,
)

N = TypeVar("N", np.int64, np.float64)
Source: TypeAlias = str | os.PathLike[str] | ModelFile | Config


@dataclass(frozen=True)
class Defaults:
    """Defaults of a kind of tokenizer, for keys that the file lacks."""

    special: Mapping[str, int]
    add_bos: bool = False
    add_eos: bool = False
    add_sep: bool = False
    add_space_prefix: bool = False


BYTE_PAIRS = Defaults({"bos": 11, "eos": 11})
DEFAULTS = {
    "gpt2": BYTE_PAIRS,
    "gemma4": Defaults({}, add_bos=True),
    "llama": Defaults({"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True),
    "bert": Defaults({"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103}, add_bos=True, add_sep=True),
    "t5": Defaults({"eos": 1, "unk": 2, "pad": 0}, add_eos=True),
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


def read_vocabulary(config: Config, defaults: Defaults | None = None) -> Vocabulary:
    kind = KIND.of(config)
    given = defaults or DEFAULTS[kind]
    stored = TOKENS.of(config)
    count = len(stored)
    if not count:
        raise TOKENS.refuse(config, "one token at least")
    types = _per_token(config, TYPES, count)
    scores = _per_token(config, SCORES, count)
    if types is None:
        types = np.full(count, TokenKind.NORMAL, np.int64)
    return Vocabulary(
        kind=kind,
        pre=PRE.of(config, ""),
        texts=[text or f"[EMPTY_{id}]" for id, text in enumerate(stored)],
        types=np.where(np.isin(types, list(TokenKind)), types, TokenKind.UNDEFINED),
        scores=np.zeros(count) if scores is None else scores,
        special=_special(config, given, count),
        add_bos=ADD_BOS.of(config, given.add_bos),
        add_eos=ADD_EOS.of(config, given.add_eos),
        add_sep=ADD_SEP.of(config, given.add_sep),
        add_space_prefix=ADD_SPACE.of(config, given.add_space_prefix),
        config=config,
    )


def _per_token(config: Config, key: Key[NDArray[N]], count: int) -> NDArray[N] | None:
    values = key.of(config, None)
    if values is None:
        return None
    if len(values) < count:
        raise key.refuse(config, f"an entry for each of the {count} tokens")
    return values[:count]


def _special(config: Config, defaults: Defaults, count: int) -> dict[str, int]:
    """The ids of special tokens. An id outside the vocabulary is ignored, as in llama.cpp."""
    special = {name: id for name, id in defaults.special.items() if id < count}
    for name, keys in SPECIAL.items():
        for key in keys:
            id = key.of(config, None)
            if id is not None and 0 <= id < count:
                special[name] = id
    return special
