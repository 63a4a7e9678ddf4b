"""The bytes of each token, for decoding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import final

from ..token_kinds import TokenKind
from .vocabulary import Vocabulary

SPACE = "▁"  # how SentencePiece spells a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SHOWN_ON_REQUEST = (TokenKind.CONTROL, TokenKind.UNKNOWN)


def byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable bytes as themselves, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def byte_value(text: str) -> int | None:
    """The byte of a token like <0x0A>."""
    match = _BYTE.fullmatch(text)
    return int(match[1], 16) if match else None


@final
class TokenBytes:
    """The bytes of tokens, each computed once."""

    def __init__(self, vocabulary: Vocabulary, *, byte_level: bool) -> None:
        self._texts, self._types = vocabulary.texts, vocabulary.types
        self._alphabet: Mapping[str, int] | None = byte_alphabet() if byte_level else None
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
            value = byte_value(text)
            return _encode(text) if value is None else bytes((value,))
        if kind is not TokenKind.NORMAL:
            return b""
        if self._alphabet is None:
            return _encode(text.replace(SPACE, " "))
        alphabet = self._alphabet
        return b"".join(bytes((alphabet[char],)) if char in alphabet else _encode(char) for char in text)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
