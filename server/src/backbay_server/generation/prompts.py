"""Prompts: what a client gave becomes what the engine takes, and what reads its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from backbay_engine import LLM

from ..errors import InvalidRequestError
from .calls import AnswerForm, form_of
from .forced_calls import call_format
from .reading import AnswerReader, FormReader, PlainReader
from .requests import Conversation, Format, Prompt

Made: TypeAlias = Any  # token ids, or the engine's parts of a prompt with pictures
RESERVED: Final = frozenset(("add_generation_prompt", "chat_template", "messages", "tools"))
MOST_PICTURES: Final = 64  # of one request
_TAIL: Final = 8  # tokens that hold the mark of reasoning, if the template has begun it
_THINK, _THOUGHT, _CALL = "<think>", "\n</think>\n\n", "<tool_call>\n"


class Prepared(NamedTuple):
    """A prompt for the engine, the format of its answers, and a maker of their readers."""

    prompt: Made
    format: Format | None
    reader: Callable[[], AnswerReader]


def prepared(llm: LLM, asked: Prompt, wanted: Format | None) -> Prepared:
    """What a client gave, for the engine."""
    if not isinstance(asked, Conversation):
        return Prepared(llm.encode(asked), wanted, PlainReader)
    prompt, template = made(llm, asked), llm.template.source
    form = form_of(template, tools=bool(asked.tools))
    if asked.must_call:
        mark = _CALL if form.marked else ""
        reader = partial(FormReader, AnswerForm(bare=True), inside=False, parallel=True)
        return Prepared(_continued(llm, prompt, mark), call_format(asked.tools), reader)
    if wanted is not None:
        if asked.tools:
            raise InvalidRequestError(
                "an answer in a format calls no tools: leave out either tools or response_format",
                param="response_format",
            )
        return Prepared(_continued(llm, prompt, ""), wanted, PlainReader)
    reasons = form.reasons and _reasons(llm, prompt)
    return Prepared(prompt, None, partial(FormReader, form, inside=reasons, parallel=asked.parallel))


def made(llm: LLM, said: Conversation) -> Made:
    """The prompt of a conversation."""
    reserved = RESERVED & said.variables.keys()
    if reserved:
        raise InvalidRequestError(f"a request may not set the template's {', '.join(sorted(reserved))}")
    _require_few_pictures(said.messages)
    template = llm.template.source
    variables = dict(said.variables)
    if said.tools:
        if "tools" not in template:
            raise InvalidRequestError("the model's chat template takes no tools", param="tools")
        variables["tools"] = said.tools
    return llm.chat_prompt(_with_known_roles(said.messages, template), **variables)


def _require_few_pictures(messages: Sequence[Mapping[str, Any]]) -> None:
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    pictures = sum(part["type"] in ("image", "image_url") for part in parts)
    if pictures > MOST_PICTURES:
        raise InvalidRequestError(
            f"the conversation has {pictures} pictures, at most {MOST_PICTURES} are taken"
        )


def _continued(llm: LLM, prompt: Made, mark: str) -> Made:
    """The prompt of an answer whose form is given: reasoning that the template has begun ends, and a call begins."""
    begun = (_THOUGHT if _reasons(llm, prompt) else "") + mark
    if not begun or not isinstance(prompt, list):
        return prompt
    return [*prompt, *llm.tokenizer.encode(begun, add_special=False)]


def _reasons(llm: LLM, prompt: Made) -> bool:
    """Whether a prompt ends inside of the model's reasoning, which its template has begun."""
    if not isinstance(prompt, list):
        return False
    return llm.tokenizer.decode(prompt[-_TAIL:], special=True).rstrip().endswith(_THINK)


def _with_known_roles(messages: Sequence[Mapping[str, Any]], template: str) -> Sequence[Mapping[str, Any]]:
    """Developers speak as the system, unless the template knows them."""
    if "developer" in template:
        return messages
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
