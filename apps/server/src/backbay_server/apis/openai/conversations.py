"""From OpenAI's bodies of chat to conversations for the generator, and to messages as chat templates take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backbay_engine import Tools

from ...errors import InvalidRequestError
from ...generation import Conversation, GivenRows, Request
from ...transport.bodies import mend_surrogates
from ..options import tools_of
from .chat_requests import (
    AllowedToolChoice,
    AudioUrlPart,
    ChatRequest,
    Choice,
    Function,
    ImagePart,
    InputAudioPart,
    Message,
    NamedToolChoice,
    Part,
    RefusalPart,
    RowsPart,
    TextPart,
    ToolCall,
)
from .generation_fields import format_of, options_of
from .reasoning_fields import thinking_variables


def request_of(body: ChatRequest) -> Request:
    names = ("max_completion_tokens", "max_tokens", "n_predict")
    name = next((each for each in names if getattr(body, each) is not None), "max_tokens")
    most: int | None = getattr(body, name)
    if most == 0:
        raise InvalidRequestError(f"{name} must be 1 or more, or -1", param=name)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    options = options_of(
        body, None if most == -1 else most, logprobs, format_of(body.response_format, "response_format")
    )
    return Request(body.model, [chat_conversation(body)], options, body.n or 1)


def chat_conversation(body: ChatRequest) -> Conversation:
    variables = {**thinking_variables(body, body.reasoning_effort), **(body.chat_template_kwargs or {})}
    return Conversation(template_messages(body.messages), _chat_tools(body), variables)


def _chat_tools(body: ChatRequest) -> Tools:
    functions = [tool.function for tool in body.tools or ()]
    match body.tool_choice:
        case NamedToolChoice(named):
            return functions_tools(functions, None, named.name, body.parallel_tool_calls)
        case AllowedToolChoice(allowed):
            names = {tool.function.name for tool in allowed.tools}
            if unknown := names - {each.name for each in functions}:
                raise InvalidRequestError(
                    f"tool_choice allows the tool {min(unknown)!r}, and tools has none", param="tool_choice"
                )
            some = [each for each in functions if each.name in names]
            return functions_tools(some, allowed.mode, None, body.parallel_tool_calls)
        case choice:
            return functions_tools(functions, choice, None, body.parallel_tool_calls)


def template_messages(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """The messages as templates take them; InvalidRequestError if calls of tools and their results do not match."""
    asked = set[str]()
    found: list[Mapping[str, Any]] = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if message.role == "tool" and message.tool_call_id not in asked:
            raise InvalidRequestError(
                f"{place}: a message of the role 'tool' must answer a call of an earlier message, and no call has the "
                f"id {message.tool_call_id!r}",
                param=f"{place}.tool_call_id",
            )
        found.append(_message(message, place))
        asked |= {called.id for called in message.tool_calls or []}
    return found


def functions_tools(
    functions: Sequence[Function], choice: Choice | None, named: str | None, parallel: bool | None
) -> Tools:
    return tools_of(
        map(_function, functions),
        strict=(each.name for each in functions if each.strict),
        choice=choice or "auto",
        named=named,
        parallel=parallel is not False,
    )


def _function(function: Function) -> Mapping[str, Any]:
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"name": function.name, "description": function.description or "", "parameters": parameters}


def _message(message: Message, place: str) -> Mapping[str, Any]:
    content = message.content
    if content is None and not (message.role == "assistant" and message.tool_calls):
        raise InvalidRequestError(f"{place} has no content", param=f"{place}.content")
    shown: dict[str, Any] = {"role": message.role}
    shown["content"] = [_part(part) for part in content] if isinstance(content, list) else content or ""
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            shown[name] = value
    if message.tool_calls:
        shown["tool_calls"] = [_called(called, place) for called in message.tool_calls]
    return shown


def _part(part: Part) -> Mapping[str, Any]:
    match part:
        case ImagePart(image):
            return {"type": "image_url", "image_url": {"url": image.url}}
        case InputAudioPart(sound):
            return {"type": "input_audio", "input_audio": {"data": sound.data}}
        case AudioUrlPart(sound):
            return {"type": "audio_url", "audio_url": {"url": sound.url}}
        case RowsPart(rows, width):
            return {"type": "rows", "rows": GivenRows(rows, width)}
        case TextPart(text) | RefusalPart(text):
            return {"type": "text", "text": text}


def _called(called: ToolCall, place: str) -> Mapping[str, Any]:
    """A call with its arguments as a mapping, which is what templates write out as JSON."""
    try:
        arguments = json.loads(mend_surrogates(called.function.arguments.encode() or b"{}").decode())
    except (ValueError, RecursionError) as error:
        told = f"{place}: the arguments of the call {called.id!r} are not JSON: {error}"
        raise InvalidRequestError(told, param=f"{place}.tool_calls") from None
    function = {"name": called.function.name, "arguments": arguments}
    return {"id": called.id, "type": "function", "function": function}
