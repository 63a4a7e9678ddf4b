"""Responses: the bodies of answers, and the typed events of a stream."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypedDict

from msgspec import Struct, field

from ...measures import ChosenLogprob
from ..chat_requests import Choice
from .requests import NamedFunction, ReasoningOptions, TextOptions

Status: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, tag="output_text", tag_field="type"):
    """A part of the message: its text."""

    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[ChosenLogprob] = field(default_factory=list)


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    """A part of the reasoning: its text."""

    text: str


class Message(Struct, tag="message", tag_field="type"):
    """The assistant's message."""

    id: str
    status: Status
    content: list[OutputText] = field(default_factory=list)
    role: Literal["assistant"] = "assistant"


class FunctionCall(Struct, tag="function_call", tag_field="type"):
    """A call of a function; the arguments are JSON, as the model wrote it."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str = ""


class Reasoning(Struct, tag="reasoning", tag_field="type"):
    """The reasoning before the message."""

    id: str
    status: Status
    content: list[ReasoningText] = field(default_factory=list)
    summary: list[Any] = field(default_factory=list)


Item: TypeAlias = Message | FunctionCall | Reasoning


class InputDetails(Struct):
    """Of the prompt's tokens, those that were in the cache."""

    cached_tokens: int


class OutputDetails(Struct):
    """Of the answer's tokens, those of its reasoning."""

    reasoning_tokens: int


class Usage(Struct):
    """Tokens of the prompt and of the answer."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(Struct):
    """Why an answer is not whole."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(Struct, kw_only=True):
    """An answer, whole or in progress, and what was asked."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[Item]
    usage: Usage | None = None
    incomplete_details: IncompleteDetails | None = None
    error: None = None
    object: Literal["response"] = "response"
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: ReasoningOptions
    store: bool = False
    temperature: float | None
    text: TextOptions
    tool_choice: Choice | NamedFunction
    tools: list[Any]
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"


class InputTokenCount(Struct):
    """The number of a prompt's tokens."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


# -- events ----------------------------------------------------------------------------------------------


class _Event(Struct, tag_field="type", kw_only=True):
    """An event, numbered when it is sent."""

    sequence_number: int = 0


class _OfResponse(_Event, kw_only=True):
    response: Response


class ResponseCreated(_OfResponse, kw_only=True, tag="response.created"):
    """The answer has begun."""


class ResponseInProgress(_OfResponse, kw_only=True, tag="response.in_progress"):
    """The answer goes on."""


class ResponseCompleted(_OfResponse, kw_only=True, tag="response.completed"):
    """The answer is whole."""


class ResponseIncomplete(_OfResponse, kw_only=True, tag="response.incomplete"):
    """The answer ended before it was whole."""


class _OfItem(_Event, kw_only=True):
    output_index: int
    item: Item


class ItemAdded(_OfItem, kw_only=True, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_OfItem, kw_only=True, tag="response.output_item.done"):
    """An item is whole."""


class ItemPlace(TypedDict):
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
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
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
