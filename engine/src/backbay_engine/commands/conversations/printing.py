"""Printing an answer while it grows: its text to standard output, its reasoning beside it to standard error."""

from __future__ import annotations

import sys
from typing import Final, final

from backbay.cli import printable

from ...text.answers import Piece, Reasoning, Text

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_SPACES: Final = " \n\t"


@final
class AnswerPrinter:
    """Prints pieces as they come. `reasons` tells whether reasoning is printed, too."""

    def __init__(self, *, reasons: bool) -> None:
        self._reasons, self._thinking = reasons, False
        self._dims = sys.stderr.isatty()

    def print(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            self.end_reasoning()
            sys.stdout.write(printable(piece.text))
            sys.stdout.flush()
        elif isinstance(piece, Reasoning) and self._reasons:
            self._reason(printable(piece.text))

    def _reason(self, text: str) -> None:
        if not self._thinking:
            text = text.lstrip(_SPACES)
        if text:
            self._thinking = True
            sys.stderr.write(f"{_DIM}{text}{_PLAIN}" if self._dims else text)
            sys.stderr.flush()

    def end_reasoning(self) -> None:
        """Let what follows begin on a line of its own."""
        if self._thinking:
            self._thinking = False
            sys.stderr.write("\n")
            sys.stderr.flush()
