"""Decoding: the text of tokens, one by one."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import final


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
