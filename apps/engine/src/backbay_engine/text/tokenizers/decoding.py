"""Decoding: the bytes of each token, and the text of tokens, one by one."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from typing import Final, final

from ..token_kinds import TokenKind
from .vocabulary import Vocabulary

SPACE: Final = "\u2581"  # how SentencePiece spells a space
_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SHOWN_ON_REQUEST: Final = (TokenKind.CONTROL, TokenKind.UNKNOWN)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable bytes as themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


@final
class TokenBytes:
    """The bytes of tokens, each computed once."""

    def __init__(self, vocabulary: Vocabulary, *, byte_level: bool) -> None:
        self._texts, self._types = vocabulary.texts, vocabulary.types
        self._alphabet = byte_alphabet() if byte_level else None
        self._known: tuple[dict[int, bytes], dict[int, bytes]] = {}, {}

    def of(self, id: int, special: bool) -> bytes:
        known = self._known[special]
        piece = known.get(id)
        if piece is None:
            piece = known[id] = self._make(id, special)
        return piece

    def _make(self, id: int, special: bool) -> bytes:
        text, kind = self._texts[id], TokenKind(self._types[id])
        if kind in _SHOWN_ON_REQUEST:
            return _encode(text) if special else b""
        if kind is TokenKind.USER_DEFINED:
            return _encode(text)
        if kind is TokenKind.BYTE:
            match = _BYTE.fullmatch(text)  # like <0x0A>
            return bytes((int(match[1], 16),)) if match else _encode(text)
        if kind is not TokenKind.NORMAL:
            return b""
        if self._alphabet is None:
            return _encode(text.replace(SPACE, " "))
        bytes_of = self._alphabet
        return b"".join(bytes((bytes_of[char],)) if char in bytes_of else _encode(char) for char in text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@final
class TokenStream:
    """Decodes tokens one by one. Half a character waits for the tokens that complete it.

    The pieces, joined, equal the text of all tokens decoded at once.
    """

    def __init__(self, piece: Callable[[int], bytes], *, drop_space: bool) -> None:
        self._piece, self._drop_space = piece, drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is complete after this token, often empty."""
        piece = self._piece(id)
        if self._drop_space and piece:
            piece = piece.removeprefix(b" ")
            self._drop_space = False
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """The rest: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)
