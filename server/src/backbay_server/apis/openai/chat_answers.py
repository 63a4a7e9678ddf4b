"""Chat: the bodies of answers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from ..logprobs import ChosenLogprob
from ..timings import Timings
from .usage import FINGERPRINT, Usage

Reason: TypeAlias = Literal["stop", "length", "tool_calls"]


class CalledFunction(Struct):
    """The function of a call, and its arguments as JSON."""

    name: str
    arguments: str


class ToolCall(Struct):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class Message(Struct):
    """The assistant's message."""

    content: str | None
    refusal: None = None
    role: Literal["assistant"] = "assistant"
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class Logprobs(Struct):
    """The log-probabilities of an answer's tokens."""

    content: list[ChosenLogprob]
    refusal: None = None


class Choice(Struct):
    """One of the answers."""

    index: int
    message: Message
    finish_reason: Reason
    logprobs: Logprobs | None = None


class ChatCompletion(Struct):
    """A whole answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    object: Literal["chat.completion"] = "chat.completion"
    system_fingerprint: str = FINGERPRINT
    timings: Timings | UnsetType = UNSET


class FunctionDelta(Struct):
    """A piece of a call: its name, or a piece of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(Struct):
    """A piece of a call of a tool."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET


class Delta(Struct):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(Struct):
    """What a chunk adds to one of the answers."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: Reason | None = None


class ChatChunk(Struct):
    """A piece of an answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str = FINGERPRINT
    timings: Timings | UnsetType = UNSET
