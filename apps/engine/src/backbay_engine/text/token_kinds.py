"""What a token of a vocabulary is, with the numbers that GGUF gives."""

from __future__ import annotations

from enum import IntEnum


class TokenKind(IntEnum):
    """The type of a token."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6
