"""From the messages of a request to those that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backbay_engine import Tools

from ...errors import InvalidRequestError
from ..options import tools_of
from .chat_requests import Choice, Function, ImagePart, Message, Part, TextPart, ToolCall


def conversation_of(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
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
    return {
        "name": function.name,
        "description": function.description or "",
        "parameters": function.parameters or {"type": "object", "properties": {}},
    }


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
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": part.image_url.url}}
    return {"type": "text", "text": part.text if isinstance(part, TextPart) else part.refusal}


def _called(called: ToolCall, place: str) -> Mapping[str, Any]:
    """A call with its arguments as a mapping, which is what templates write out as JSON."""
    try:
        arguments = json.loads(called.function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        told = f"{place}: the arguments of the call {called.id!r} are not JSON: {error}"
        raise InvalidRequestError(told, param=f"{place}.tool_calls") from None
    function = {"name": called.function.name, "arguments": arguments}
    return {"id": called.id, "type": "function", "function": function}
