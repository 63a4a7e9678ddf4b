"""The bodies of answers: usage, and chat."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from ...generation import AnswerEnd
from ..measures import ChosenLogprob, Timings, timings_of

FINGERPRINT: Final = f"backbay-{metadata.version('backbay-server')}"


class PromptDetails(Struct):
    """Of the prompt's tokens, those that were in the cache."""

    cached_tokens: int = 0


class Usage(Struct):
    """Tokens of the prompt and of all answers."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(ends: Sequence[AnswerEnd], n: int) -> Usage:
    """The usage of all choices: each prompt counts once, however many answers it has."""
    generated = sum(end.timings.tokens for end in ends)
    firsts = [end.timings for end in ends if end.choice % n == 0]
    prompt, cached = sum(each.prompt_tokens for each in firsts), sum(each.reused_tokens for each in firsts)
    return Usage(prompt, generated, prompt + generated, PromptDetails(cached))


def only_timings(ends: Sequence[AnswerEnd], n: int) -> Timings | UnsetType:
    """Where the time went, if there is one answer; those of several overlap."""
    return timings_of(ends[0].timings) if len(ends) == n == 1 else UNSET


# -- chat ------------------------------------------------------------------------------------------------

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
