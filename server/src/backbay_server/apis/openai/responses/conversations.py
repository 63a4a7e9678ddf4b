"""From the items of a request to the messages of chat."""

from __future__ import annotations

from typing import TypeVar

from ....errors import InvalidRequestError
from ...fields import check_refused
from .. import chat_requests as chat
from .requests import InputImage, Item, Part, Refusal, ResponsesRequest

T = TypeVar("T")


def messages_of(body: ResponsesRequest) -> list[chat.Message]:
    """The conversation as messages: calls and reasoning belong to the assistant's message beside them."""
    found = [] if body.instructions is None else [chat.Message("system", body.instructions)]
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    reasoning: str | None = None
    for number, item in enumerate(items):
        place = f"input[{number}]"
        if item.type == "reasoning":
            said = item.content
            if isinstance(said, list):
                said = "".join(part.text for part in said if not isinstance(part, InputImage | Refusal))
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


def _message(item: Item, place: str) -> chat.Message:
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
        case Refusal():
            return chat.RefusalPart(part.refusal)
        case _:
            return chat.TextPart(part.text)
