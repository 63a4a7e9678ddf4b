"""From Anthropic's conversations to those of chat templates, which have OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from backbay_engine import Tools

from ...errors import InvalidRequestError
from ...generation.requests import AnswerOptions, Conversation, schema_format
from ..options import reasoning_variables, tools_of
from . import requests as given

_CHOICES: Final[Mapping[str, Literal["none", "auto", "required"]]] = {
    "none": "none",
    "auto": "auto",
    "any": "required",
    "tool": "required",
}


def conversation_of(body: given.Conversation) -> Conversation:
    """The conversation of a request; InvalidRequestError if the server cannot lead it."""
    if body.messages[-1].role == "assistant":
        raise InvalidRequestError(
            "the last message is the assistant's; answers cannot be begun", param="messages"
        )
    called: set[str] = set()
    messages: list[dict[str, Any]] = []
    if body.system is not None:
        system = body.system
        text = system if isinstance(system, str) else "\n\n".join(part.text for part in system)
        messages.append({"role": "system", "content": text})
    for place, message in enumerate(body.messages):
        messages += _messages(message, called, f"messages[{place}]")
    variables = reasoning_variables(
        on=None if body.thinking is None else body.thinking.type != "disabled",
        effort=None if body.output_config is None else body.output_config.effort,
    )
    tools = _tools(body.tools or (), body.tool_choice or given.ToolChoice("auto"))
    return Conversation(messages, tools, variables)


def options_of(body: given.MessagesRequest) -> AnswerOptions:
    config = body.output_config or given.OutputConfig()
    wanted = config.format or body.output_format
    name = "output_config.format" if config.format else "output_format"
    return AnswerOptions(
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        response_format=None if wanted is None else schema_format(wanted.schema, name),
    )


def _messages(message: given.Message, called: set[str], place: str) -> Iterator[dict[str, Any]]:
    """The messages of a template for one of Anthropic's; the ids of calls are added to `called`."""
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "assistant":
        yield _said(message.content, called)
        return
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(message.content):
        where = f"{place}.content[{number}]"
        match part:
            case given.ToolResultBlock():
                if part.tool_use_id not in called:
                    raise InvalidRequestError(
                        f"{where}: no tool_use block before has the id {part.tool_use_id!r}", param=where
                    )
                if parts:
                    yield {"role": message.role, "content": _joined(parts)}
                    parts = []
                content = [] if part.content is None else part.content
                result = content if isinstance(content, str) else _joined([_part(each) for each in content])
                yield {"role": "tool", "tool_call_id": part.tool_use_id, "content": result}
            case given.TextBlock() | given.ImageBlock():
                parts.append(_part(part))
            case _:
                raise InvalidRequestError(f"{where}: only the assistant has such parts", param=where)
    if parts:
        yield {"role": message.role, "content": _joined(parts)}


def _said(parts: list[given.Part], called: set[str]) -> dict[str, Any]:
    thoughts = [part.thinking for part in parts if isinstance(part, given.ThinkingBlock)]
    uses = [part for part in parts if isinstance(part, given.ToolUseBlock)]
    text = "".join(part.text for part in parts if isinstance(part, given.TextBlock))
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        said["reasoning_content"] = "".join(thoughts)
    if uses:
        called.update(use.id for use in uses)
        functions = [{"name": use.name, "arguments": use.input} for use in uses]
        calls = zip(uses, functions, strict=True)
        said["tool_calls"] = [{"id": use.id, "type": "function", "function": each} for use, each in calls]
    return said


def _part(part: given.TextBlock | given.ImageBlock) -> dict[str, Any]:
    if isinstance(part, given.TextBlock):
        return {"type": "text", "text": part.text}
    source = part.source
    url = (
        f"data:{source.media_type};base64,{source.data}"
        if isinstance(source, given.Base64Source)
        else source.url
    )
    return {"type": "image_url", "image_url": {"url": url}}


def _joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The text of parts without pictures: every template knows texts."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "".join(texts) if len(texts) == len(parts) else parts


def _tools(tools: Sequence[given.Tool], choice: given.ToolChoice) -> Tools:
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        for tool in tools
    ]
    return tools_of(
        functions,
        strict=(tool.name for tool in tools if tool.strict),
        choice=_CHOICES[choice.type],
        named=choice.name or "" if choice.type == "tool" else None,
        parallel=not choice.disable_parallel_tool_use,
    )
