"""Text to tokens and back, by the vocabulary in a model file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, final

import numpy as np

from backbay.gguf import Config, nearest, text

from ...errors import TokenizerError
from ..token_kinds import TokenKind
from .byte_pairs import BytePairEncoder
from .decoding import TokenBytes, TokenStream
from .pretokenizers import DEFAULT, PRETOKENIZERS, PreTokenizer
from .sentencepiece import SentencePiece, Unigram
from .special_tokens import SpecialTokenSplitter, assign_roles
from .vocabulary import (
    DEFAULTS,
    KIND,
    MERGES,
    PRE,
    SUPPRESSED,
    TEMPLATE,
    Source,
    TokenizerDefaults,
    Vocabulary,
    open_config,
    read_vocabulary,
)
from .wordpiece import WordPiece

_TOKEN, _MERGE = 200, 250  # bytes that tables take for one, measured


class TextEncoder(Protocol):
    """Encodes a text without special tokens. `after_special`: the text begins the input, or follows a special token."""

    def encode(self, text: str, after_special: bool, /) -> list[int]: ...


@final
class Tokenizer:
    """Text to tokens and back. Made by `tokenizer_from_gguf`; threads may share one."""

    def __init__(self, vocabulary: Vocabulary, encoder: TextEncoder, *, byte_level: bool) -> None:
        self._vocabulary, self._encoder = vocabulary, encoder
        self.end_ids = assign_roles(vocabulary)
        self.kind: str = vocabulary.kind
        self.vocabulary_size: int = len(vocabulary.texts)
        self.add_bos, self.add_eos, self.add_sep = vocabulary.add_bos, vocabulary.add_eos, vocabulary.add_sep
        self.control_ids = frozenset(vocabulary.of_type(TokenKind.CONTROL))
        config = vocabulary.config
        self.chat_template: str | None = TEMPLATE.of(config, None)
        named = f"{TEMPLATE.name}."
        templates = {key.removeprefix(named): text(key).of(config) for key in config if key.startswith(named)}
        self.chat_templates = MappingProxyType(templates)
        suppressed = SUPPRESSED.of(config, np.empty(0, np.int64)).tolist()
        # Tokens that must never be chosen, by the file.
        self.suppressed_ids: tuple[int, ...] = tuple(
            id for id in suppressed if 0 <= id < self.vocabulary_size
        )
        self._special_tokens = SpecialTokenSplitter(vocabulary)
        self._bytes = TokenBytes(vocabulary, byte_level=byte_level)
        # These vocabularies write a space before every word, also the first.
        self._drop_space = vocabulary.kind == "bert" or vocabulary.add_space_prefix

    @property
    def nbytes(self) -> int:
        """About the bytes that the tables take, and the part of the model file that they were read from."""
        merges = MERGES.of(self._vocabulary.config, None)
        return _TOKEN * self.vocabulary_size + _MERGE * len(merges or ())

    @property
    def special_ids(self) -> Mapping[str, int]:
        """The tokens that have a role, by its name: bos, eos, eot, fim_pre, fim_suf, fim_mid, and others."""
        return MappingProxyType(self._vocabulary.special)

    @property
    def bos(self) -> int | None:
        return self._vocabulary.special.get("bos")

    @property
    def eos(self) -> int | None:
        return self._vocabulary.special.get("eos")

    @property
    def eot(self) -> int | None:
        return self._vocabulary.special.get("eot")

    @property
    def unk(self) -> int | None:
        return self._vocabulary.special.get("unk")

    @property
    def sep(self) -> int | None:
        return self._vocabulary.special.get("sep")

    @property
    def pad(self) -> int | None:
        return self._vocabulary.special.get("pad")

    @property
    def mask(self) -> int | None:
        return self._vocabulary.special.get("mask")

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        plain: Collection[int] = (),
        continues: bool = False,
    ) -> list[int]:
        """The tokens of a text.

        add_special     add the tokens that the model expects at the ends: beginning of sequence, separator
        parse_special   encode the text of a control token as the token; use False for text that users typed
        plain           tokens whose text is not encoded as the token, whatever `parse_special` says
        continues       the text continues another, so no space is put before its first word
        """
        _check_text(text)
        ids: list[int] = []
        after_special = not continues
        for fragment in self._special_tokens.split(text, parse_special, plain):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += self._encoder.encode(fragment, after_special)
            after_special = isinstance(fragment, int)
        before, after = self.around if add_special else ([], [])
        return [*before, *ids, *after]

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """The tokens that `add_special` adds before and after a text."""
        always = self.kind == "bert"  # whatever the file says, as in llama.cpp
        before = self.bos if self.add_bos or always else None
        after = self.sep if always else self.eos if self.add_eos else None
        return [] if before is None else [before], [] if after is None else [after]

    def decode(self, ids: Iterable[int], *, special: bool = False, continues: bool = False) -> str:
        """The text of tokens.

        special     write control tokens too, as text
        continues   the tokens continue others, so a space before the first word stays
        """
        stream = self.stream(special=special, continues=continues)
        return "".join([*map(stream.push, ids), stream.finish()])

    def stream(
        self, *, special: bool = False, continues: bool = False, shown: Collection[int] = ()
    ) -> TokenStream:
        """A decoder for tokens that come one by one; an answer `continues` its prompt.

        shown   control tokens that are written as text, although the others are not
        """
        seen = frozenset(shown)

        def piece(id: int) -> bytes:
            return self.token_bytes(id, special=special or id in seen)

        return TokenStream(piece, drop_space=self._drop_space and not continues)

    def token_bytes(self, id: int, *, special: bool = False) -> bytes:
        """The bytes that a token decodes to; they may be part of a character."""
        self._check(id)
        return self._bytes.of(id, special)

    def token_text(self, id: int) -> str:
        """A token's spelling in the vocabulary; bytes that are not UTF-8 are replaced."""
        self._check(id)
        return self._vocabulary.texts[id].encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        """The id of a token by its spelling; None if there is none."""
        return self._vocabulary.ids.get(text)

    def _check(self, id: int) -> None:
        if not 0 <= id < self.vocabulary_size:
            raise TokenizerError(
                f"token {id} is not in the vocabulary; ids go from 0 to {self.vocabulary_size - 1}"
            )


def tokenizer_from_gguf(source: Source) -> Tokenizer:
    """The tokenizer of a model file: its path, the open file, or its metadata."""
    config = open_config(source)
    kind = KIND.of(config)
    if kind not in DEFAULTS:
        raise KIND.refuse(config, f"a kind of vocabulary that has a tokenizer: {', '.join(DEFAULTS)},")
    if kind not in _ENCODERS:
        return _byte_pairs(config, kind)
    vocabulary = read_vocabulary(config)
    return Tokenizer(vocabulary, _ENCODERS[kind](vocabulary), byte_level=False)


_ENCODERS: Mapping[str, Callable[[Vocabulary], TextEncoder]] = {
    "llama": SentencePiece,
    "bert": WordPiece,
    "t5": Unigram,
}


def _byte_pairs(config: Config, kind: str) -> Tokenizer:
    pre = PRETOKENIZERS["gemma4"] if kind == "gemma4" else _pre_tokenizer(config)
    MERGES.of(config)  # which the encoder needs later
    given = DEFAULTS[kind].special
    special = given if pre.bos else {name: id for name, id in given.items() if name != "bos"}
    vocabulary = read_vocabulary(config, TokenizerDefaults(special, add_bos=pre.add_bos, add_sep=pre.add_sep))
    # llama.cpp overrules gemma4 files: the first ones were wrong
    vocabulary.add_bos = vocabulary.add_bos or (pre.add_bos and not pre.byte_level)
    return Tokenizer(vocabulary, BytePairEncoder(vocabulary, pre), byte_level=pre.byte_level)


def _pre_tokenizer(config: Config) -> PreTokenizer:
    name = PRE.of(config, "")
    if not name:
        return DEFAULT  # old files have no name
    if name not in PRETOKENIZERS:
        raise PRE.refuse(config, f"a known pre-tokenizer{nearest(name, PRETOKENIZERS)},")
    return PRETOKENIZERS[name]


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise TokenizerError(f"a text to tokenize must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found, where = text[error.start], f"at position {error.start}"
        if "\udc80" <= found <= "\udcff":  # what Python makes of bytes of arguments
            told = f"the byte {ord(found) - 0xDC00:#x} {where} is not UTF-8; give the text in UTF-8"
        else:
            told = f"half a surrogate pair is not valid text: {found!r} {where}; decode it as UTF-16 first"
        raise TokenizerError(told) from None
