"""The pieces of an answer: text, reasoning, and calls of tools."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterable
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


class Joined(NamedTuple):
    """The pieces of an answer, joined."""

    text: str
    reasoning: str
    calls: list[ToolCall]


def joined(pieces: Iterable[Piece]) -> Joined:
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
    return Joined("".join(text), "".join(reasoning), made)


def new_id() -> str:
    """The id of a call: nine letters and digits, as Mistral's templates demand."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))


def _object_of(text: str) -> dict[str, Any] | None:
    """The object that a text of JSON is; None if it is none."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _refuse(name: str) -> Any:
    raise ValueError(name)
