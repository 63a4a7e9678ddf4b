"""The pieces of an answer: text, reasoning, and calls of tools."""

from __future__ import annotations

import secrets
import string
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

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


Piece: TypeAlias = Text | Reasoning | CallBegun | CallArguments


def new_id() -> str:
    """The id of a call: nine letters and digits, as Mistral's templates demand."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call; none if the answer's end has cut them."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}
