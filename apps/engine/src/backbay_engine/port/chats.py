"""Conversations with an answer in parts: text, reasoning and calls of tools, told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from ..errors import RequestError
from ..media.prompts import PromptParts
from ..runner.requests.answer import Completion
from ..runner.requests.handle import Handle
from ..text.answers import (
    AnswerForm,
    AnswerReader,
    AnswerRule,
    Piece,
    Tools,
    call_format,
    form_of,
    joined,
    reader_of,
)
from ..text.formats import format_rule, response_format_of
from ..text.tokenizers import Tokenizer
from .request_maker import UserPrompt

CHAT_OPTIONS: Final = frozenset(
    ("tools", "tool_choice", "parallel_tool_calls", "response_format", "variables")
)
_RESERVED: Final = frozenset(("add_generation_prompt", "chat_template", "messages", "tools"))
_TAIL: Final = 16  # tokens that hold the mark of reasoning, if the template has begun it
_FINAL: Final = "<|channel|>final<|message|>"


class ChatRequest(NamedTuple):
    """A conversation as `submit` takes it: `llm.submit(chat.prompt, **chat.options)`.

    reader  makes a reader for one answer, which cuts the answer's text into pieces
    """

    prompt: UserPrompt
    options: Mapping[str, Any]
    reader: Callable[[], AnswerReader]

    def pieces(self, handle: Handle[Completion]) -> Iterator[Piece]:
        """The pieces of an answer as they come."""
        reader = self.reader()
        for text in handle:
            yield from reader.push(text)
        yield from reader.finish()

    def told_apart(self, whole: Completion, pieces: Iterable[Piece] | None = None) -> Completion:
        """The answer with its reasoning and its calls apart from its text.

        `pieces` are those that `pieces` gave, if they were read: so calls keep their ids.
        """
        reader = self.reader()
        read = [*reader.push(whole.text)]
        rest, called = reader.end(whole.stop)
        ended = "tool_calls" if called and whole.finish_reason == "stop" else whole.finish_reason
        text, reasoning, calls = joined([*read, *rest] if pieces is None else pieces)
        return replace(whole, text=text, reasoning=reasoning, tool_calls=calls, finish_reason=ended)


def checked_variables(variables: object) -> dict[str, Any]:
    """The variables of a chat template; RequestError for names that are not the caller's to set."""
    if variables is None:
        return {}
    if not isinstance(variables, Mapping) or not all(isinstance(name, str) for name in variables):
        raise RequestError(f"variables must be a mapping from names to values, got {variables!r}")
    if taken := _RESERVED & variables.keys():
        raise RequestError(f"variables may not set the template's {', '.join(sorted(taken))}")
    return dict(variables)


def chat_request(
    prompt: list[int] | PromptParts, template: str, tokenizer: Tokenizer, tools: Tools, response_format: Any
) -> ChatRequest:
    """The request for an answer to a prompt that a chat template has made, with its tools in it."""
    wanted = response_format_of(response_format)
    form = form_of(template, tools=bool(tools.definitions))
    inside = form.thinking is not None and _ends_with(tokenizer, prompt, form.thinking[0])
    if wanted is not None and not tools.definitions:
        begun = _FINAL if form.channels else _after_reasoning(form, inside=inside)
        return ChatRequest(
            _joined(tokenizer, prompt, begun),
            {"response_format": wanted, "shown": ()},
            partial(reader_of, AnswerForm()),
        )
    if tools.forced or wanted is not None:
        prompt, inside = _joined(tokenizer, prompt, _after_reasoning(form, inside=inside)), False
    reader = partial(reader_of, form, inside=inside, parallel=tools.parallel, schemas=tools.schemas)
    marks = map(tokenizer.token_id, form.marks)
    shown = tuple(mark for mark in marks if mark is not None and mark in tokenizer.control_ids)
    bound = tools.forced or tools.strict or wanted is not None
    answer = None if wanted is None else AnswerRule(format_rule(wanted), wanted.kind == "schema")
    calls = call_format(form, tools, tokenizer, inside=inside, answer=answer) if bound else None
    return ChatRequest(prompt, {"response_format": calls, "shown": shown}, reader)


def _after_reasoning(form: AnswerForm, *, inside: bool) -> str:
    """The text that ends the reasoning which a template has begun; empty if it has begun none."""
    return f"\n{form.thinking[1]}\n\n" if inside and form.thinking else ""


def _joined(tokenizer: Tokenizer, prompt: list[int] | PromptParts, text: str) -> list[int] | PromptParts:
    """A prompt with more text at its end."""
    if not text:
        return prompt
    more = tokenizer.encode(text, add_special=False)
    return [*prompt, *more] if isinstance(prompt, list) else replace(prompt, items=(*prompt.items, more))


def _ends_with(tokenizer: Tokenizer, prompt: list[int] | PromptParts, mark: str) -> bool:
    """Whether a prompt ends with a mark, and space."""
    last = prompt if isinstance(prompt, list) else prompt.items[-1]
    if not isinstance(last, str | list):  # a picture
        return False
    text = last if isinstance(last, str) else tokenizer.decode(last[-_TAIL:], special=True)
    return text.rstrip().endswith(mark.rstrip())
