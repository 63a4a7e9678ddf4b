"""Anthropic's messages: the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from ..fields import MOST_TOOLS, Count, Positive, Share, Stops, TopP, ignored, refused, taken


class TextBlock(Struct, tag="text", tag_field="type"):
    """A part of a message: text."""

    text: Annotated[str, taken("the text")]
    cache_control: Annotated[dict[str, Any] | None, ignored("prefixes are always cached")] = None
    citations: Annotated[Any, ignored("there are none")] = None


class Base64Source(Struct, tag="base64", tag_field="type"):
    """A picture in the request."""

    media_type: Annotated[str, taken("the kind of the file")]
    data: Annotated[str, taken("the file")]


class UrlSource(Struct, tag="url", tag_field="type"):
    """A picture elsewhere."""

    url: Annotated[str, taken("a data: URL, or an address at a host that was allowed")]


class ImageBlock(Struct, tag="image", tag_field="type"):
    """A part of a message: a picture."""

    source: Annotated[Base64Source | UrlSource, taken("the picture, if the model sees")]
    cache_control: Annotated[dict[str, Any] | None, ignored("prefixes are always cached")] = None


class ThinkingBlock(Struct, tag="thinking", tag_field="type"):
    """A part of the assistant's message: its reasoning."""

    thinking: Annotated[str, taken("the reasoning, for templates that show it")]
    signature: Annotated[str, ignored("reasoning is not signed")] = ""


class RedactedThinkingBlock(Struct, tag="redacted_thinking", tag_field="type"):
    """A part of the assistant's message: reasoning that only its author can read."""

    data: Annotated[str, ignored("nothing can read it")] = ""


class ToolUseBlock(Struct, tag="tool_use", tag_field="type"):
    """A part of the assistant's message: a tool's call."""

    id: Annotated[str, taken("the id of the call")]
    name: Annotated[str, taken("the tool")]
    input: Annotated[dict[str, Any], taken("the arguments")]
    cache_control: Annotated[dict[str, Any] | None, ignored("prefixes are always cached")] = None


class ToolResultBlock(Struct, tag="tool_result", tag_field="type"):
    """A part of the user's message: a tool's result."""

    tool_use_id: Annotated[str, taken("the id of the call")]
    content: Annotated[str | list[TextBlock | ImageBlock] | None, taken("the result")] = None
    is_error: Annotated[bool, ignored("the content says it")] = False
    cache_control: Annotated[dict[str, Any] | None, ignored("prefixes are always cached")] = None


Part: TypeAlias = (
    TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
)


class Message(Struct):
    """A message of the conversation."""

    role: Annotated[Literal["user", "assistant", "system"], taken("who speaks")]
    content: Annotated[str | list[Part], taken("a text, or parts")]


class Tool(Struct):
    """A tool that the model may call."""

    name: Annotated[Annotated[str, Meta(min_length=1, max_length=256)], taken("the name")]
    input_schema: Annotated[dict[str, Any], taken("the JSON schema of the arguments")]
    description: Annotated[str, taken("what it does")] = ""
    type: Annotated[Literal["custom"] | None, taken("tools that run on the server are not there")] = None
    cache_control: Annotated[dict[str, Any] | None, ignored("prefixes are always cached")] = None
    strict: Annotated[bool | None, taken("whether the arguments of calls obey the schema")] = None


ToolList: TypeAlias = Annotated[list[Tool], Meta(max_length=MOST_TOOLS)]


class ToolChoice(Struct):
    """Which tools the model may or must call."""

    type: Annotated[
        Literal["auto", "any", "tool", "none"], taken("the model decides, must call, calls one, or none")
    ]
    name: Annotated[str | None, taken("the tool, for the type tool")] = None
    disable_parallel_tool_use: Annotated[bool, taken("at most one call")] = False


class ThinkingOptions(Struct):
    """Whether the model reasons before it answers."""

    type: Annotated[Literal["enabled", "disabled", "adaptive"], taken("templates that know reasoning get it")]
    budget_tokens: Annotated[Positive | None, ignored("only max_tokens bounds an answer")] = None
    display: Annotated[str | None, ignored("the whole reasoning is given")] = None


class SchemaFormat(Struct, tag="json_schema", tag_field="type"):
    """JSON by a schema."""

    schema: Annotated[dict[str, Any], taken("the JSON schema, which the answer obeys")]


class OutputConfig(Struct):
    """What the answer is like."""

    format: Annotated[SchemaFormat | None, taken("the form of the answer")] = None
    effort: Annotated[str | None, taken("how much to reason, for templates that know it")] = None


class Conversation(Struct, kw_only=True):
    """What messages and count_tokens share."""

    model: Annotated[str, taken("the model's name or alias")]
    messages: Annotated[Annotated[list[Message], Meta(min_length=1)], taken("the conversation")]
    system: Annotated[str | list[TextBlock] | None, taken("the system's message")] = None
    tools: Annotated[ToolList | None, taken("the tools, if the model's template knows tools")] = None
    tool_choice: Annotated[ToolChoice | None, taken("which tools the model may or must call")] = None
    thinking: Annotated[ThinkingOptions | None, taken("whether the model reasons")] = None
    output_config: Annotated[OutputConfig | None, taken("what the answer is like")] = None
    output_format: Annotated[SchemaFormat | None, taken("the older place of output_config.format")] = None
    cache_control: Annotated[dict[str, Any] | None, ignored("prefixes are always cached")] = None
    mcp_servers: Annotated[list[Any] | None, refused("the server calls no other servers", ([],))] = None
    context_management: Annotated[
        dict[str, Any] | None, ignored("the conversation is taken as it is sent")
    ] = None
    speed: Annotated[str | None, ignored("there is one speed")] = None
    user_profile_id: Annotated[str | None, ignored("nothing is kept by user")] = None
    workspace_id: Annotated[str | None, ignored("nothing is kept by workspace")] = None


class CountRequest(Conversation, forbid_unknown_fields=True, kw_only=True):
    """The body of /v1/messages/count_tokens."""


class MessagesRequest(Conversation, forbid_unknown_fields=True, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[Positive, taken("the most tokens of the answer")]
    stop_sequences: Annotated[Stops | None, taken("strings that end the answer")] = None
    stream: Annotated[bool, taken("send events as the answer grows")] = False
    temperature: Annotated[Share | None, taken("0 is greedy; 1 by default")] = None
    top_k: Annotated[Count | None, taken("choose among this many tokens; 0: all")] = None
    top_p: TopP = None
    metadata: Annotated[dict[str, Any] | None, ignored("it is not stored")] = None
    service_tier: Annotated[str | None, ignored("there is one tier")] = None
    inference_geo: Annotated[str | None, ignored("there is one place")] = None
    diagnostics: Annotated[Any, ignored("nothing is kept to compare with")] = None
    container: Annotated[Any, refused("the server runs no code")] = None
    fallbacks: Annotated[Any, ignored("the model that is asked for answers, or nobody")] = None
    fallback_credit_token: Annotated[Any, ignored("nothing is paid for")] = None
