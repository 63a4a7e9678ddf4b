"""Prompts: what a client gave becomes the ids, or the parts with pictures, that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from backbay_engine import LLM

from ..errors import InvalidRequestError
from .calls import PLAIN, AnswerForm, form_of
from .reading import AnswerReader, FormReader, PlainReader
from .requests import Conversation, Prompt

Made: TypeAlias = Any  # token ids, or the engine's parts of a prompt with pictures
RESERVED: Final = frozenset(("add_generation_prompt", "chat_template", "messages", "tools"))
_TAIL: Final = 8  # tokens that hold the mark of reasoning, if the template has begun it


def made(llm: LLM, prompt: Prompt) -> Made:
    """The prompt for the engine."""
    return _of_conversation(llm, prompt) if isinstance(prompt, Conversation) else llm.encode(prompt)


def reader_of(prompt: Prompt, form: AnswerForm, begun: bool) -> AnswerReader:
    """What reads an answer to the prompt."""
    if form == PLAIN or not isinstance(prompt, Conversation):
        return PlainReader()
    return FormReader(form, inside=begun, parallel=prompt.parallel)


def form_for(llm: LLM, prompt: Prompt) -> AnswerForm:
    """The form of the answer: only conversations have reasoning, and calls of tools."""
    if not isinstance(prompt, Conversation):
        return PLAIN
    return form_of(llm.template.source, tools=bool(prompt.tools))


def reasons(llm: LLM, prompt: Made) -> bool:
    """Whether a prompt ends inside of the model's reasoning, which its template has begun."""
    if not isinstance(prompt, list):
        return False
    return llm.tokenizer.decode(prompt[-_TAIL:], special=True).rstrip().endswith("<think>")


def _of_conversation(llm: LLM, said: Conversation) -> Made:
    reserved = RESERVED & said.variables.keys()
    if reserved:
        raise InvalidRequestError(f"a request may not set the template's {', '.join(sorted(reserved))}")
    template = llm.template.source
    variables = dict(said.variables)
    if said.tools:
        if "tools" not in template:
            raise InvalidRequestError("the model's chat template takes no tools", param="tools")
        variables["tools"] = said.tools
    return llm.chat_prompt(_with_known_roles(said.messages, template), **variables)


def _with_known_roles(messages: Sequence[Mapping[str, Any]], template: str) -> Sequence[Mapping[str, Any]]:
    """Developers speak as the system, unless the template knows them."""
    if "developer" in template:
        return messages
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
