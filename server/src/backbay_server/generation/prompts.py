"""Prompts: what a client gave becomes what the engine takes, and what reads its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from backbay_engine import LLM

from ..errors import InvalidRequestError
from .forms import AnswerForm, AnswerReader, PlainReader, call_format, form_of, reader_of
from .gaps import gap_prompt
from .lengths import require_fitting
from .requests import Conversation, Format, Gap, Prompt

Made: TypeAlias = Any  # token ids, or the engine's parts of a prompt with pictures
RESERVED: Final = frozenset(("add_generation_prompt", "chat_template", "messages", "tools"))
MOST_PICTURES: Final = 64  # of one request
_TAIL: Final = 8  # tokens that hold the mark of reasoning, if the template has begun it
_FINAL: Final = "<|channel|>final<|message|>"


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
    prompt = made(llm, asked)
    form = form_of(llm.template.source, tools=bool(tools.definitions))
    inside = form.thinking is not None and _ends_with(llm, prompt, form.thinking[0])
    if wanted is not None:
        return Prepared(_continued(llm, prompt, form, inside=inside), format=wanted)
    if tools.forced:
        prompt, inside = _without_reasoning(llm, prompt, form, inside=inside), False
    # Nothing has checked the definitions of Ollama's clients.
    functions = [each["function"] for each in tools.definitions if "function" in each]
    schemas = {each["name"]: each.get("parameters") or {} for each in functions if "name" in each}
    reader = partial(reader_of, form, inside=inside, parallel=tools.parallel, schemas=schemas)
    shown = [id for mark in form.marks if (id := llm.tokenizer.token_id(mark)) in llm.tokenizer.control_ids]
    if not (tools.forced or tools.strict):
        return Prepared(prompt, reader, shown=shown)
    return Prepared(prompt, reader, call_format(form, tools, llm.tokenizer, inside=inside), "tools", shown)


def made(llm: LLM, said: Conversation) -> Made:
    """The prompt of a conversation."""
    reserved = RESERVED & said.variables.keys()
    if reserved:
        raise InvalidRequestError(f"a request may not set the template's {', '.join(sorted(reserved))}")
    require_fitting(llm, said.messages, said.tools.definitions, said.variables)
    template = llm.template.source
    variables = dict(said.variables)
    if said.tools.definitions:
        if "tools" not in template:
            raise InvalidRequestError("the model's chat template takes no tools", param="tools")
        variables["tools"] = said.tools.definitions
    return llm.chat_prompt(_with_known_roles(said.messages, template), **variables)


def require_few_pictures(messages: Sequence[Mapping[str, Any]]) -> None:
    """InvalidRequestError if a conversation has more pictures than the server takes."""
    contents = [message.get("content") for message in messages]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    pictures = sum(part["type"] in ("image", "image_url") for part in parts)
    if pictures > MOST_PICTURES:
        raise InvalidRequestError(
            f"the conversation has {pictures} pictures, at most {MOST_PICTURES} are taken"
        )


def _continued(llm: LLM, prompt: Made, form: AnswerForm, *, inside: bool) -> Made:
    """The prompt of an answer in a format: the form's own beginning is in the prompt, too."""
    if form.channels:
        return _joined(llm, prompt, _FINAL)
    return _without_reasoning(llm, prompt, form, inside=inside)


def _without_reasoning(llm: LLM, prompt: Made, form: AnswerForm, *, inside: bool) -> Made:
    """The prompt of an answer that has no room for reasoning: what the template has begun ends."""
    return _joined(llm, prompt, f"\n{form.thinking[1]}\n\n") if inside and form.thinking else prompt


def _joined(llm: LLM, prompt: Made, text: str) -> Made:
    """A prompt with more text; one with pictures stays as it is."""
    if not isinstance(prompt, list):
        return prompt
    return [*prompt, *llm.tokenizer.encode(text, add_special=False)]


def _ends_with(llm: LLM, prompt: Made, mark: str) -> bool:
    """Whether a prompt ends with a mark, and space."""
    if not isinstance(prompt, list):
        return False
    return llm.tokenizer.decode(prompt[-_TAIL:], special=True).rstrip().endswith(mark.rstrip())


def _with_known_roles(messages: Sequence[Mapping[str, Any]], template: str) -> Sequence[Mapping[str, Any]]:
    """Developers speak as the system, unless the template knows them."""
    if "developer" in template:
        return messages
    return [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
