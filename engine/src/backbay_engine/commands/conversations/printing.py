"""Printing an answer while it grows: its text to standard output, its reasoning beside it to standard error."""

from __future__ import annotations

import os
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
        self._reasons, self._thinking, self._ended = reasons, False, False
        self._dims = sys.stderr.isatty() and not os.environ.get("NO_COLOR")

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
            self._thinking, self._ended = True, text.endswith("\n")
            self._write(f"{_DIM}{text}{_PLAIN}" if self._dims else text)

    def end_reasoning(self) -> None:
        """Let what follows begin on a line of its own."""
        if self._thinking:
            self._thinking = False
            self._write("" if self._ended else "\n")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):  # full, or closed: the answer matters more
            self._reasons = False
