"""Chat: the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from ..fields import ignored, refused, taken
from .sampling import GenerationFields

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]


class TextPart(Struct, tag="text", tag_field="type"):
    """A part of a message: text."""

    text: Annotated[str, taken("the text")]


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """A part of the assistant's message: why it does not answer."""

    refusal: Annotated[str, taken("shown as text")]


class ImageUrl(Struct):
    """Where a picture is."""

    url: Annotated[str, taken("a data: URL")]
    detail: Annotated[str | None, ignored("the model's own size is used")] = None


class ImagePart(Struct, tag="image_url", tag_field="type"):
    """A part of a message: a picture."""

    image_url: Annotated[ImageUrl, taken("the picture, if the model sees")]


Part: TypeAlias = TextPart | ImagePart | RefusalPart


class CalledFunction(Struct):
    """The function of a call."""

    name: Annotated[str, taken("the function")]
    arguments: Annotated[str, taken("its arguments, as JSON")] = "{}"


class ToolCall(Struct):
    """A call of a tool in the assistant's message."""

    id: Annotated[str, taken("the id to which the tool's message refers")]
    function: Annotated[CalledFunction, taken("the call")]
    type: Annotated[Literal["function"], taken("the kind of tool")] = "function"


class Message(Struct):
    """A message of the conversation. Members that are not listed are ignored."""

    role: Annotated[Role, taken("who speaks")]
    content: Annotated[str | list[Part] | None, taken("what is said")] = None
    name: Annotated[str | None, taken("the speaker's name, for templates that show it")] = None
    tool_calls: Annotated[list[ToolCall] | None, taken("calls of tools by the assistant")] = None
    tool_call_id: Annotated[str | None, taken("the call that a tool's message answers")] = None
    reasoning_content: Annotated[
        str | None, taken("the assistant's reasoning, for templates that show it")
    ] = None
    refusal: Annotated[str | None, ignored("the assistant's content says it")] = None
    audio: Annotated[Any, ignored("the model hears nothing")] = None


class ChatRequest(GenerationFields, kw_only=True):
    """Messages to answer."""

    messages: Annotated[list[Message], Meta(min_length=1), taken("the conversation")]
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        taken("the most tokens of an answer; by default what the context holds"),
    ] = None
    max_completion_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, taken("the newer name of max_tokens, and before it")
    ] = None
    logprobs: Annotated[bool | None, taken("whether the answer has log-probabilities")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, taken("the most likely tokens beside each; needs logprobs")
    ] = None
    tools: Annotated[list[Any] | None, refused("the server does not call tools yet", ([],))] = None
    response_format: Annotated[Any, refused("the server gives text", ({"type": "text"},))] = None
