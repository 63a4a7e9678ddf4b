"""The pieces of an answer: text, reasoning, and calls of tools; and the readers that find them in a text that grows."""

from __future__ import annotations

import json
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

_ID_LETTERS: Final = string.ascii_letters + string.digits


class Text(NamedTuple):
    """A piece of the answer's text."""

    text: str


class Reasoning(NamedTuple):
    """A piece of the reasoning before the answer."""

    text: str


class CallBegun(NamedTuple):
    """A call of a tool; its arguments follow."""

    number: int
    id: str
    name: str


class CallArguments(NamedTuple):
    """A piece of a call's arguments, which together are JSON as the model wrote it."""

    number: int
    text: str


class ToolCall(NamedTuple):
    """A whole call of a tool; its arguments are JSON as the model wrote it."""

    id: str
    name: str
    arguments: str

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name; none if the answer's end has cut them."""
        return _object_of(self.arguments) or {}

    @property
    def entry(self) -> dict[str, Any]:
        """The call as a message has it: the arguments as an object, or as a text if they are none."""
        found = _object_of(self.arguments)
        given = self.arguments if found is None else found
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": given}}


Piece: TypeAlias = Text | Reasoning | CallBegun | CallArguments


class JoinedAnswer(NamedTuple):
    """The pieces of an answer, joined."""

    text: str
    reasoning: str
    calls: list[ToolCall]


def joined(pieces: Iterable[Piece]) -> JoinedAnswer:
    """The text, the reasoning and the calls of an answer, of its pieces in their order."""
    text, reasoning = list[str](), list[str]()
    calls = list[tuple[CallBegun, list[str]]]()
    for piece in pieces:
        match piece:
            case Text(more):
                text.append(more)
            case Reasoning(more):
                reasoning.append(more)
            case CallBegun():
                calls.append((piece, []))
            case CallArguments(number, more):
                calls[number][1].append(more)
    made = [ToolCall(begun.id, begun.name, "".join(arguments)) for begun, arguments in calls]
    return JoinedAnswer("".join(text), "".join(reasoning), made)


def _object_of(text: str) -> dict[str, Any] | None:
    """The object that a text of JSON is; None if it is none."""
    try:
        found = parse_json(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def parse_json(text: str) -> Any:
    """The value of a text of JSON; ValueError also for NaN and infinities, which JSON does not have."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> Any:
    raise ValueError(name)


# -- readers ---------------------------------------------------------------------------------------------


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

    def end(self, stop: str | None) -> tuple[Sequence[Piece], bool]:
        """The rest, and whether the answer has called tools: it has not if a stop string has cut a call."""
        cut = stop is not None and self.is_calling
        rest = self.finish()
        return rest, self.calls > 0 and not cut


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
        """Begin a call; its own id has nine letters and digits, as Mistral's templates demand."""
        id = id or "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
        self._given.append(CallBegun(self._begun, id, name))
        self._begun += 1

    def _taken(self) -> Sequence[Piece]:
        given, self._given = self._given, []
        return given


def first_mark(text: str, marks: Sequence[str]) -> tuple[int, str]:
    """The place of the first mark in a text, and the mark; an empty one if there is none."""
    return min(((at, mark) for mark in marks if (at := text.find(mark)) >= 0), default=(-1, ""))
