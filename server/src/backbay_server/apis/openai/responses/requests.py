"""Responses: the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from ... import fields
from ...fields import ignored, refused, taken
from ..chat_requests import Choice, Function
from ..sampling import IgnoredFields, ResponsesFormat

Kind: TypeAlias = Literal["message", "function_call", "function_call_output", "reasoning"]
STATE: Final = "the server keeps no state; send the whole conversation"


class InputText(Struct, tag="input_text", tag_field="type"):
    """A part of a message: text."""

    text: Annotated[str, taken("the text")]


class OutputText(Struct, tag="output_text", tag_field="type"):
    """A part of the assistant's message: text."""

    text: Annotated[str, taken("the text")]
    annotations: Annotated[list[Any] | None, ignored("there are none")] = None


class Refusal(Struct, tag="refusal", tag_field="type"):
    """A part of the assistant's message: why it does not answer."""

    refusal: Annotated[str, taken("shown as text")]


class InputImage(Struct, tag="input_image", tag_field="type"):
    """A part of a message: a picture."""

    image_url: Annotated[str | None, taken("a data: URL, or an address at a host that was allowed")] = None
    file_id: Annotated[str | None, refused("the server keeps no files")] = None
    detail: Annotated[str | None, ignored("the model's own size is used")] = None


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    """A part of the assistant's reasoning."""

    text: Annotated[str, taken("the text, for templates that show it")]


Part: TypeAlias = InputText | OutputText | Refusal | InputImage | ReasoningText


class Item(Struct):
    """An item of the conversation: a message, a call of a function, its result, or reasoning."""

    type: Annotated[Kind | None, taken("the kind; by default a message")] = None
    role: Annotated[
        Literal["user", "assistant", "system", "developer"] | None, taken("of a message: who speaks")
    ] = None
    content: Annotated[str | list[Part] | None, taken("of a message, or of reasoning: what is said")] = None
    call_id: Annotated[str | None, taken("of a call, and of its result: what joins them")] = None
    name: Annotated[str | None, taken("of a call: the function")] = None
    arguments: Annotated[str | None, taken("of a call: the arguments, as JSON")] = None
    output: Annotated[str | list[Part] | None, taken("of a result: what the function gave")] = None
    summary: Annotated[list[Any] | None, ignored("reasoning is not summarized")] = None
    encrypted_content: Annotated[str | None, ignored("reasoning is not encrypted")] = None
    id: Annotated[str | None, ignored("nothing is stored")] = None
    status: Annotated[str | None, ignored("items are whole")] = None


class FunctionTool(Function, kw_only=True):
    """A function that the model may call."""

    type: Annotated[Literal["function"], taken("the kind of tool")]


class NamedFunction(Struct):
    """The choice of one function."""

    type: Annotated[Literal["function"], taken("the kind of tool")]
    name: Annotated[str, taken("the function")]


class TextOptions(Struct):
    """The form of the text."""

    format: Annotated[
        ResponsesFormat | None,
        taken("what the answer must be: text, JSON, JSON by a schema, or by a grammar"),
    ] = None
    verbosity: Annotated[str | None, ignored("the model knows no verbosity")] = None


class ReasoningOptions(Struct):
    """How the model reasons."""

    effort: fields.ReasoningEffort = None
    summary: Annotated[str | None, ignored("the whole reasoning is given")] = None
    generate_summary: Annotated[str | None, ignored("the whole reasoning is given")] = None


class ResponsesRequest(IgnoredFields, kw_only=True, forbid_unknown_fields=True):
    """A conversation to answer."""

    input: Annotated[
        str | Annotated[list[Item], Meta(min_length=1)], taken("the user's text, or the conversation")
    ]
    model: fields.Model = None
    instructions: Annotated[str | None, taken("the system's message, before all others")] = None
    max_output_tokens: Annotated[
        fields.Positive | None, taken("the most tokens; by default what the context holds")
    ] = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_logprobs: fields.TopLogprobs = None
    stream: Annotated[bool | None, taken("whether the answer comes as typed events")] = None
    stream_options: Annotated[dict[str, Any] | None, ignored("chunks are not padded")] = None
    tools: Annotated[
        Annotated[list[FunctionTool], Meta(max_length=fields.MOST_TOOLS)] | None,
        taken("functions that the model may call"),
    ] = None
    tool_choice: Annotated[
        Choice | NamedFunction | None,
        taken("whether the model may call a tool, must call one, or must call the named one"),
    ] = None
    parallel_tool_calls: fields.OneCall = None
    max_tool_calls: Annotated[int | None, ignored("it is for tools of OpenAI's own")] = None
    text: Annotated[TextOptions | None, taken("the form of the text")] = None
    reasoning: Annotated[ReasoningOptions | None, taken("how the model reasons")] = None
    include: Annotated[
        list[str] | None, taken("message.output_text.logprobs; other known values have no effect")
    ] = None
    truncation: Annotated[str | None, refused("nothing is cut off silently", ("disabled",))] = None
    context_management: Annotated[list[Any] | None, refused("nothing is cut off silently", ([],))] = None
    background: Annotated[bool | None, refused(STATE, (False,))] = None
    previous_response_id: Annotated[str | None, refused(STATE)] = None
    conversation: Annotated[Any, refused(STATE)] = None
    prompt: Annotated[Any, refused(STATE)] = None
    metadata: Annotated[dict[str, Any] | None, taken("given back with the answer")] = None
