"""Text from tokens as they come."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import final


@final
class TokenStream:
    """Gives the text of tokens one by one, and never half a character: that waits for the tokens that end it.

    What it gives, joined, is what decoding all of them at once gives.
    """

    def __init__(self, piece: Callable[[int], bytes], *, drop_space: bool) -> None:
        self._piece, self._drop_space = piece, drop_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that is certain now, often nothing."""
        piece = self._piece(id)
        if self._drop_space and piece:
            piece = piece.removeprefix(b" ")
            self._drop_space = False
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
