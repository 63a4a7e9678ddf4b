"""Chat: the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from .. import fields
from ..fields import ignored, refused, taken
from .generation_fields import FORMAT, ChatFormat
from .reasoning_fields import ReasoningFields

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function"]
Choice: TypeAlias = Literal["none", "auto", "required"]


Thoughts: TypeAlias = Annotated[str | None, taken("the assistant's reasoning, for templates that show it")]


class TextPart(Struct, tag="text", tag_field="type"):
    """A part of a message: text."""

    text: Annotated[str, taken("the text")]


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """A part of the assistant's message: why it does not answer."""

    refusal: Annotated[str, taken("shown as text")]


class ImageUrl(Struct):
    """Where a picture is."""

    url: Annotated[str, taken("a data: URL, or an address at a host that was allowed")]
    detail: Annotated[str | None, ignored("the model's own size is used")] = None


class ImagePart(Struct, tag="image_url", tag_field="type"):
    """A part of a message: a picture."""

    image_url: Annotated[ImageUrl, taken("the picture, if the model sees")]


class RowsPart(Struct, tag="rows", tag_field="type"):
    """A part of a message: vectors in the place of tokens."""

    rows: Annotated[
        str, taken("base64 of float32, row after row, if the server was started with --allow-rows")
    ]
    width: Annotated[int, taken("the numbers of a row")]


class AudioData(Struct):
    """A sound."""

    data: Annotated[str, taken("the file in base64: WAV, FLAC, OGG or MP3")]
    format: Annotated[str | None, ignored("the file says its kind")] = None


class InputAudioPart(Struct, tag="input_audio", tag_field="type"):
    """A part of a message: a sound."""

    input_audio: Annotated[AudioData, taken("the sound, if the model hears")]


class AudioUrl(Struct):
    """Where a sound is."""

    url: Annotated[str, taken("a data: URL; no sound is fetched")]


class AudioUrlPart(Struct, tag="audio_url", tag_field="type"):
    """A part of a message: a sound, as vLLM has it."""

    audio_url: Annotated[AudioUrl, taken("the sound, if the model hears")]


Part: TypeAlias = TextPart | ImagePart | InputAudioPart | AudioUrlPart | RefusalPart | RowsPart


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
    reasoning_content: Thoughts = None
    refusal: Annotated[str | None, ignored("the assistant's content says it")] = None
    audio: Annotated[Any, ignored("answers are text")] = None


class Function(Struct):
    """A function that the model may call."""

    name: Annotated[Annotated[str, Meta(min_length=1, max_length=128)], taken("the name, as calls have it")]
    description: Annotated[str | None, taken("what it does, for the model")] = None
    parameters: Annotated[dict[str, Any] | None, taken("the schema of its arguments, for the model")] = None
    strict: Annotated[bool | None, taken("whether the arguments of calls obey the schema")] = None


class Tool(Struct):
    """A tool: a function."""

    function: Annotated[Function, taken("the function")]
    type: Annotated[Literal["function"], taken("the kind of tool")]


ToolList: TypeAlias = Annotated[list[Tool], Meta(max_length=fields.MOST_TOOLS)]


class ToolName(Struct):
    """A function by its name."""

    name: Annotated[str, taken("the function")]


class NamedToolChoice(Struct, tag="function", tag_field="type"):
    """The choice of one tool."""

    function: Annotated[ToolName, taken("the function")]


class ToolSubset(Struct):
    """Some of the tools, and whether one of them must be called."""

    mode: Annotated[Literal["auto", "required"], taken("required: the answer is a call")]
    tools: Annotated[Annotated[list[NamedToolChoice], Meta(max_length=fields.MOST_TOOLS)], taken("the tools")]


class AllowedToolChoice(Struct, tag="allowed_tools", tag_field="type"):
    """The choice among some of the tools; the model sees no others."""

    allowed_tools: Annotated[ToolSubset, taken("the tools, and the mode")]


class ChatRequest(ReasoningFields, kw_only=True):
    """Messages to answer."""

    messages: Annotated[list[Message], Meta(min_length=1), taken("the conversation")]
    max_tokens: fields.MaxTokens = None
    max_completion_tokens: Annotated[
        fields.Length | None, taken("the newer name of max_tokens; if both are given, it counts")
    ] = None
    logprobs: Annotated[bool | None, taken("whether the answer has log-probabilities")] = None
    top_logprobs: Annotated[
        fields.Alternatives | None,
        taken("how many of the most likely tokens to report with each token; needs logprobs"),
    ] = None
    tools: Annotated[ToolList | None, taken("functions that the model may call")] = None
    tool_choice: Annotated[
        Choice | NamedToolChoice | AllowedToolChoice | None,
        taken("whether the model may call a tool, must call one, must call the named one, or may call some"),
    ] = None
    parallel_tool_calls: fields.OneCall = None
    reasoning_effort: fields.ReasoningEffort = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        taken("variables for the model's template; the template itself cannot be replaced"),
    ] = None
    response_format: Annotated[ChatFormat | None, FORMAT] = None
    chat_template: Annotated[str | None, refused("the model's own template is used")] = None
    modalities: Annotated[list[str] | None, refused("answers are text", (["text"],))] = None
    audio: Annotated[dict[str, Any] | None, refused("answers are text")] = None
    functions: Annotated[list[Any] | None, refused("its new name is tools", ([],))] = None
    function_call: Annotated[Any, refused("its new name is tool_choice", ("none",))] = None
    web_search_options: Annotated[dict[str, Any] | None, refused("the server reaches no network")] = None
    prediction: Annotated[dict[str, Any] | None, ignored("nothing is predicted")] = None
    verbosity: Annotated[str | None, ignored("the model knows no verbosity")] = None
