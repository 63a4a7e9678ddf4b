"""What reads an answer: it makes pieces of the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from .pieces import Piece


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
