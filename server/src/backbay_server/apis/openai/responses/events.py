"""Responses: the typed events of a stream."""

from __future__ import annotations

from typing import TypeAlias, TypedDict

from msgspec import Struct, field

from ..logprobs import ChosenLogprob
from .answers import Item, OutputText, ReasoningText, Response


class _Event(Struct, tag_field="type", kw_only=True):
    """An event, numbered when it is sent."""

    sequence_number: int = 0


class Created(_Event, kw_only=True, tag="response.created"):
    """The answer has begun."""

    response: Response


class InProgress(_Event, kw_only=True, tag="response.in_progress"):
    """The answer goes on."""

    response: Response


class Completed(_Event, kw_only=True, tag="response.completed"):
    """The answer is whole."""

    response: Response


class Shortened(_Event, kw_only=True, tag="response.incomplete"):
    """The answer ended before it was whole."""

    response: Response


class ItemAdded(_Event, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Item


class ItemDone(_Event, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""

    output_index: int
    item: Item


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


class PartAdded(_InPart, kw_only=True, tag="response.content_part.added"):
    """A part of an item begins."""

    part: OutputText | ReasoningText


class PartDone(_InPart, kw_only=True, tag="response.content_part.done"):
    """A part of an item is whole."""

    part: OutputText | ReasoningText


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
