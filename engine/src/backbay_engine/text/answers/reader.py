"""What reads an answer: it makes pieces of the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeVar

from .pieces import CallBegun, Piece, new_id

Reason = TypeVar("Reason", bound=str)


class AnswerReader(ABC):
    """Makes pieces of an answer's text, which comes bit by bit."""

    @property
    @abstractmethod
    def calls(self) -> int:
        """The calls of tools that have begun."""

    @property
    @abstractmethod
    def is_calling(self) -> bool:
        """Whether a call has begun that is not over."""

    @abstractmethod
    def push(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain now."""

    @abstractmethod
    def finish(self) -> Sequence[Piece]:
        """The rest, at the answer's end."""

    def end(self, reason: Reason, stop: str | None) -> tuple[Sequence[Piece], Reason | Literal["tool_calls"]]:
        """The rest, and why the answer ended: with calls of tools, unless a stop string has cut one of them."""
        cut = stop is not None and self.is_calling
        rest = self.finish()
        return rest, "tool_calls" if self.calls and reason == "stop" and not cut else reason


class HoldingReader(AnswerReader):
    """Holds text back until it is certain what it is."""

    def __init__(self) -> None:
        self._held, self._given, self._begun = "", list[Piece](), 0

    @property
    def calls(self) -> int:
        return self._begun

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        while self._held and self._go_on():
            pass
        return self._taken()

    @abstractmethod
    def _go_on(self) -> bool:
        """Take of the held text what is certain; False: more text must come first."""

    def _begin_call(self, name: str, id: str | None = None) -> None:
        self._given.append(CallBegun(self._begun, id or new_id(), name))
        self._begun += 1

    def _taken(self) -> Sequence[Piece]:
        given, self._given = self._given, []
        return given
