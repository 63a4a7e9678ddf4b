"""Reading an answer: as plain text, or by the form in which the model writes reasoning and calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

from .calls import AnswerForm, AnswerParser, CallArguments, CallBegun, Piece, Text


class AnswerReader(ABC):
    """Makes pieces of an answer's text, which comes bit by bit."""

    @property
    @abstractmethod
    def calls(self) -> int:
        """The calls of tools that have begun."""

    @abstractmethod
    def push(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain now."""

    @abstractmethod
    def finish(self) -> Sequence[Piece]:
        """The rest, at the answer's end."""


@final
class PlainReader(AnswerReader):
    """All is text."""

    @property
    def calls(self) -> int:
        return 0

    def push(self, text: str) -> Sequence[Piece]:
        return (Text(text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        return ()


@final
class FormReader(AnswerReader):
    """Tells text, reasoning and calls apart. Unless `parallel`, calls after the first are left out."""

    def __init__(self, form: AnswerForm, *, inside: bool, parallel: bool) -> None:
        self._parser, self._parallel = AnswerParser(form, inside=inside), parallel

    @property
    def calls(self) -> int:
        return self._parser.calls

    def push(self, text: str) -> Sequence[Piece]:
        return self._wanted(self._parser.push(text))

    def finish(self) -> Sequence[Piece]:
        return self._wanted(self._parser.finish())

    def _wanted(self, pieces: list[Piece]) -> Sequence[Piece]:
        return pieces if self._parallel else [piece for piece in pieces if not _further(piece)]


def _further(piece: Piece) -> bool:
    return isinstance(piece, CallBegun | CallArguments) and piece.number > 0
