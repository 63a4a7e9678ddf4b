"""The vocabulary in GGUF metadata."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

import backbay.gguf
from backbay.gguf import Config, ModelFile

from ...errors import TokenizerError

Source: TypeAlias = str | os.PathLike[str] | ModelFile | Config


class Kind(IntEnum):
    """The type of a token, as the file numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


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

# The keys of llama.cpp's converter, with its spelling; the last key that a file has counts.
SPECIAL_KEYS = {
    "bos": ("cls_token_id", "bos_token_id"),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
    "fim_pre": ("prefix_token_id", "fim_pre_token_id"),
    "fim_suf": ("suffix_token_id", "fim_suf_token_id"),
    "fim_mid": ("middle_token_id", "fim_mid_token_id"),
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
        return iter(self.config.strings("tokenizer.ggml.merges"))

    def of_type(self, *kinds: Kind) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.types, kinds)).tolist()
        return found


def open_config(source: Source) -> Config:
    """The metadata of a file; they stay valid after the file is closed."""
    if isinstance(source, Config):
        return source
    if isinstance(source, ModelFile):
        return source.metadata
    return backbay.gguf.open(source).metadata


def read_vocabulary(config: Config, defaults: Defaults | None = None) -> Vocabulary:
    kind = config.string("tokenizer.ggml.model")
    given = defaults or DEFAULTS[kind]
    texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(config.strings("tokenizer.ggml.tokens"))]
    count = len(texts)
    if count == 0:
        raise TokenizerError("the file's vocabulary, tokenizer.ggml.tokens, is empty")
    types = _per_token(config, "token_type", count, Kind.NORMAL).astype(np.int64)
    return Vocabulary(
        kind=kind,
        pre=config.string("tokenizer.ggml.pre", ""),
        texts=texts,
        types=np.where(np.isin(types, list(Kind)), types, Kind.UNDEFINED),
        scores=_per_token(config, "scores", count, 0),
        special=_special(config, given, count),
        add_bos=config.bool("tokenizer.ggml.add_bos_token", given.add_bos),
        add_eos=config.bool("tokenizer.ggml.add_eos_token", given.add_eos),
        add_sep=config.bool("tokenizer.ggml.add_sep_token", given.add_sep),
        add_space_prefix=config.bool("tokenizer.ggml.add_space_prefix", given.add_space_prefix),
        config=config,
    )


def _per_token(config: Config, name: str, count: int, default: int) -> NDArray[np.float64]:
    key = f"tokenizer.ggml.{name}"
    values = config.floats(key, None)
    if values is None:
        return np.full(count, float(default))
    if len(values) < count:
        raise TokenizerError(f"{key} has {len(values)} entries for {count} tokens; convert the model again")
    return values[:count]


def _special(config: Config, defaults: Defaults, count: int) -> dict[str, int]:
    """The ids of special tokens. An id outside the vocabulary is ignored, as in llama.cpp."""
    special = {name: id for name, id in defaults.special.items() if id < count}
    for name, keys in SPECIAL_KEYS.items():
        for key in keys:
            id = config.int(f"tokenizer.ggml.{key}", None)
            if id is not None and 0 <= id < count:
                special[name] = id
    return special
