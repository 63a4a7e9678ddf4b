"""Anthropic's messages: the bodies of answers, and the events of a stream."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ...errors import AnthropicErrorBody

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(Struct, tag="text", tag_field="type"):
    """The answer's text."""

    text: str


class ThinkingBlock(Struct, tag="thinking", tag_field="type"):
    """The reasoning before the answer. Its signature is empty: nobody checks it."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, tag="tool_use", tag_field="type"):
    """A tool's call."""

    id: str
    name: str
    input: dict[str, Any]


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class Usage(Struct):
    """Tokens: of the prompt, the cached ones apart; and of the answer."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Message(Struct, tag="message", tag_field="type"):
    """The answer."""

    id: str
    model: str
    content: list[Block]
    usage: Usage
    role: Literal["assistant"] = "assistant"
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class TokenCount(Struct):
    """The tokens of a prompt."""

    input_tokens: int


# -- events of a stream ----------------------------------------------------------------------------------------


class TextDelta(Struct, tag="text_delta", tag_field="type"):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta", tag_field="type"):
    thinking: str


class SignatureDelta(Struct, tag="signature_delta", tag_field="type"):
    signature: str


class ToolInputDelta(Struct, tag="input_json_delta", tag_field="type"):
    partial_json: str


Delta: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | ToolInputDelta


class MessageStart(Struct, tag="message_start", tag_field="type"):
    message: Message


class BlockStart(Struct, tag="content_block_start", tag_field="type"):
    index: int
    content_block: Block


class BlockDelta(Struct, tag="content_block_delta", tag_field="type"):
    index: int
    delta: Delta


class BlockStop(Struct, tag="content_block_stop", tag_field="type"):
    index: int


class MessageEnd(Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct, tag="message_delta", tag_field="type"):
    delta: MessageEnd
    usage: Usage


class MessageStop(Struct, tag="message_stop", tag_field="type"):
    pass


Event: TypeAlias = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | AnthropicErrorBody
)
