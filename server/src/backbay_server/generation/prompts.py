"""Prompts: what a client gave becomes what the engine takes, and what reads its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from backbay_engine import LLM, AnswerReader, PlainReader, ResponseFormatError, ToolsError

from ..errors import InvalidRequestError
from .gaps import gap_prompt
from .lengths import require_fitting
from .requests import Conversation, Format, Gap, Prompt

Made: TypeAlias = Any  # token ids, or the engine's parts of a prompt with pictures
RESERVED: Final = frozenset(("add_generation_prompt", "chat_template", "messages", "tools"))
MOST_PICTURES: Final = 64  # of one request


class Prepared(NamedTuple):
    """A prompt for the engine, and how its answers are made and read.

    format     what an answer must be, which the field `asked_by` of the request asks for
    shown      control tokens that the reader looks for
    """

    prompt: Made
    reader: Callable[[], AnswerReader] = PlainReader
    format: Format | None = None
    asked_by: str = "response_format"
    shown: Sequence[int] = ()


def prepared(llm: LLM, asked: Prompt, wanted: Format | None) -> Prepared:
    """What a client gave, for the engine."""
    if isinstance(asked, Gap):
        return Prepared(gap_prompt(llm, asked), format=wanted)
    if not isinstance(asked, Conversation):
        require_fitting(llm, asked)
        return Prepared(llm.encode(asked), format=wanted)
    tools = asked.tools
    if wanted is not None and tools.definitions:
        raise InvalidRequestError(
            "an answer in a format calls no tools: leave out either tools or response_format",
            param="response_format",
        )
    messages, variables = _checked(llm, asked)
    try:
        chat = llm.prepare_chat(messages, tools=tools, response_format=wanted, variables=variables)
    except ToolsError as error:
        raise InvalidRequestError(str(error), param="tools") from None
    except ResponseFormatError as error:
        told = str(error).removeprefix("response_format: ")
        raise InvalidRequestError(f"response_format: {told}", param="response_format") from None
    asked_by = "tools" if tools.definitions else "response_format"
    return Prepared(
        chat.prompt, chat.reader, chat.options["response_format"], asked_by, chat.options["shown"]
    )


def made(llm: LLM, said: Conversation) -> Made:
    """The prompt of a conversation."""
    messages, variables = _checked(llm, said)
    definitions = said.tools.definitions
    if definitions and "tools" not in llm.template.source:
        raise InvalidRequestError("the model's chat template takes no tools", param="tools")
    return llm.chat_prompt(messages, **({**variables, "tools": definitions} if definitions else variables))


def _checked(llm: LLM, said: Conversation) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]:
    """The messages of a conversation, and the variables of the chat template."""
    reserved = RESERVED & said.variables.keys()
    if reserved:
        raise InvalidRequestError(f"a request may not set the template's {', '.join(sorted(reserved))}")
    require_fitting(llm, said.messages, said.tools.definitions, said.variables)
    return _with_known_roles(said.messages, llm.template.source), said.variables


def require_few_pictures(messages: Sequence[Mapping[str, Any]]) -> None:
    """InvalidRequestError if a conversation has more pictures than the server takes."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    pictures = sum(part["type"] in ("image", "image_url") for part in parts)
    if pictures > MOST_PICTURES:
        raise InvalidRequestError(
            f"the conversation has {pictures} pictures, at most {MOST_PICTURES} are taken"
        )


def _with_known_roles(messages: Sequence[Mapping[str, Any]], template: str) -> Sequence[Mapping[str, Any]]:
    """Developers speak as the system, unless the template knows them."""
    if "developer" in template:
        return messages
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
