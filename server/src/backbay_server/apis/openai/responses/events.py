"""Responses: the typed events of a stream."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

from msgspec import Struct, field

from ...logprobs import ChosenLogprob
from .answers import Item, OutputText, ReasoningText, Response


class _Event(Struct, tag_field="type", kw_only=True):
    """An event, numbered when it is sent."""

    sequence_number: int = 0


class _OfResponse(_Event, kw_only=True):
    response: Response


class Created(_OfResponse, kw_only=True, tag="response.created"):
    """The answer has begun."""


class InProgress(_OfResponse, kw_only=True, tag="response.in_progress"):
    """The answer goes on."""


class Completed(_OfResponse, kw_only=True, tag="response.completed"):
    """The answer is whole."""


class Shortened(_OfResponse, kw_only=True, tag="response.incomplete"):
    """The answer ended before it was whole."""


class _OfItem(_Event, kw_only=True):
    output_index: int
    item: Item


class ItemAdded(_OfItem, kw_only=True, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_OfItem, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""


class Place(TypedDict):
    """Where the item of an event stands."""

    item_id: str
    output_index: int


class _InItem(_Event, kw_only=True):
    """An event of an item."""

    item_id: str
    output_index: int


class _InPart(_InItem, kw_only=True):
    """An event of an item's part, of which each item has one."""

    content_index: int = 0


class _OfPart(_InPart, kw_only=True):
    part: OutputText | ReasoningText


class PartAdded(_OfPart, kw_only=True, tag="response.content_part.added"):
    """A part of an item begins."""


class PartDone(_OfPart, kw_only=True, tag="response.content_part.done"):
    """A part of an item is whole."""


class TextDelta(_InPart, kw_only=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[ChosenLogprob] = field(default_factory=list)


class TextDone(_InPart, kw_only=True, tag="response.output_text.done"):
    """The text is whole."""

    text: str
    logprobs: list[ChosenLogprob] = field(default_factory=list)


class ReasoningDelta(_InPart, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(_InPart, kw_only=True, tag="response.reasoning_text.done"):
    """The reasoning is whole."""

    text: str


class ArgumentsDelta(_InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(_InItem, kw_only=True, tag="response.function_call_arguments.done"):
    """A call's arguments are whole."""

    name: str
    arguments: str


StreamEvent: TypeAlias = (
    Created
    | InProgress
    | Completed
    | Shortened
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
)
