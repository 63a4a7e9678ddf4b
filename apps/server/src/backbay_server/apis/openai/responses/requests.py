"""Responses: the bodies of requests, and their items as the messages of chat."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct

from ....errors import InvalidRequestError
from ... import fields
from ...fields import check_refused, ignored, refused, taken
from .. import chat_requests as chat
from ..chat_requests import Choice, Function
from ..generation_fields import FORMAT, ResponsesFormat
from ..service_fields import OpenAIServiceFields

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


class InputAudio(chat.InputAudioPart, tag="input_audio", tag_field="type"):
    """A part of a message: a sound."""


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    """A part of the assistant's reasoning."""

    text: Annotated[str, taken("the text, for templates that show it")]


Part: TypeAlias = InputText | OutputText | Refusal | InputImage | InputAudio | ReasoningText


class InputItem(Struct):
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


ToolList: TypeAlias = Annotated[list[FunctionTool], Meta(max_length=fields.MOST_TOOLS)]


class NamedFunction(Struct):
    """The choice of one function."""

    type: Annotated[Literal["function"], taken("the kind of tool")]
    name: Annotated[str, taken("the function")]


class TextOptions(Struct):
    """The form of the text."""

    format: Annotated[ResponsesFormat | None, FORMAT] = None
    verbosity: Annotated[str | None, ignored("the model knows no verbosity")] = None


class ReasoningOptions(Struct):
    """How the model reasons."""

    effort: fields.ReasoningEffort = None
    summary: Annotated[str | None, ignored("the whole reasoning is given")] = None
    generate_summary: Annotated[str | None, ignored("the whole reasoning is given")] = None


class ResponsesRequest(OpenAIServiceFields, kw_only=True, forbid_unknown_fields=True):
    """A conversation to answer."""

    input: Annotated[
        str | Annotated[list[InputItem], Meta(min_length=1)], taken("the user's text, or the conversation")
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
    tools: Annotated[ToolList | None, taken("functions that the model may call")] = None
    tool_choice: Annotated[
        Choice | NamedFunction | None,
        taken("whether the model may call a tool, must call one, or must call the named one"),
    ] = None
    parallel_tool_calls: fields.OneCall = None
    max_tool_calls: Annotated[int | None, ignored("it is for tools of OpenAI's own")] = None
    personality: Annotated[str | None, ignored("the model knows no personalities")] = None
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


T = TypeVar("T")


def messages_of(body: ResponsesRequest) -> list[chat.Message]:
    """The conversation as messages: calls and reasoning belong to the assistant's message beside them."""
    found = [] if body.instructions is None else [chat.Message("system", body.instructions)]
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    reasoning: str | None = None
    for number, item in enumerate(items):
        place = f"input[{number}]"
        if item.type == "reasoning":
            said = item.content
            if isinstance(said, list):
                said = "".join(
                    part.text for part in said if isinstance(part, InputText | OutputText | ReasoningText)
                )
            reasoning = said
            continue
        message = _message(item, place)
        if message.role == "assistant":
            message.reasoning_content, reasoning = reasoning, None
            if message.tool_calls and found and found[-1].role == "assistant":
                found[-1].tool_calls = [*(found[-1].tool_calls or []), *message.tool_calls]
                continue
        found.append(message)
    return found


def _message(item: InputItem, place: str) -> chat.Message:
    match item.type:
        case "function_call":
            name, call_id = _given(item.name, f"{place}.name"), _given(item.call_id, f"{place}.call_id")
            called = chat.ToolCall(call_id, chat.CalledFunction(name, item.arguments or "{}"))
            return chat.Message("assistant", tool_calls=[called])
        case "function_call_output":
            content = _content(item.output, f"{place}.output")
            return chat.Message("tool", content, tool_call_id=_given(item.call_id, f"{place}.call_id"))
        case _:
            content = _content(item.content, f"{place}.content")
            return chat.Message(_given(item.role, f"{place}.role"), content)


def _given(value: T | None, param: str) -> T:
    if value is None:
        raise InvalidRequestError(f"{param} is missing", param=param)
    return value


def _content(content: str | list[Part] | None, place: str) -> str | list[chat.Part]:
    if isinstance(content, str):
        return content
    return [_part(part, f"{place}[{number}]") for number, part in enumerate(_given(content, place))]


def _part(part: Part, place: str) -> chat.Part:
    match part:
        case InputImage():
            check_refused(part, f"{place}.")
            return chat.ImagePart(chat.ImageUrl(_given(part.image_url, f"{place}.image_url")))
        case InputAudio():
            return chat.InputAudioPart(part.input_audio)
        case Refusal():
            return chat.RefusalPart(part.refusal)
        case _:
            return chat.TextPart(part.text)
