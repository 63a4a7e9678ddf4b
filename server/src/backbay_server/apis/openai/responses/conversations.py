"""From the items of a request to the messages of chat."""

from __future__ import annotations

from ....errors import InvalidRequestError
from ...fields import check_refused
from .. import chat_requests as chat
from .requests import InputImage, Item, Part, Refusal, ResponsesRequest


def messages_of(body: ResponsesRequest) -> list[chat.Message]:
    """The conversation as messages: calls and reasoning belong to the assistant's message beside them."""
    found = [] if body.instructions is None else [chat.Message("system", body.instructions)]
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    reasoning: str | None = None
    for number, item in enumerate(items):
        place = f"input[{number}]"
        if item.type == "reasoning":
            reasoning = _text(item.content)
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
            if item.role is None:
                raise _missing(f"{place}.role")
            return chat.Message(item.role, content)


def _given(value: str | None, param: str) -> str:
    if value is None:
        raise _missing(param)
    return value


def _missing(param: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param} is missing", param=param)


def _content(given: str | list[Part] | None, place: str) -> str | list[chat.Part]:
    if given is None:
        raise _missing(place)
    if isinstance(given, str):
        return given
    return [_part(part, f"{place}[{number}]") for number, part in enumerate(given)]


def _part(part: Part, place: str) -> chat.Part:
    match part:
        case InputImage():
            check_refused(part, f"{place}.")
            return chat.ImagePart(chat.ImageUrl(_given(part.image_url, f"{place}.image_url")))
        case Refusal():
            return chat.RefusalPart(part.refusal)
        case _:
            return chat.TextPart(part.text)


def _text(content: str | list[Part] | None) -> str | None:
    """The text of reasoning; None if it has none."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.text for part in content if not isinstance(part, InputImage | Refusal))
