"""Conversations with an answer in parts: text, reasoning and calls of tools, told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from .engines.prompting import UserPrompt
from .errors import RequestError
from .images.prompts import Parts
from .runner.requests.answer import Completion
from .runner.requests.handle import Handle
from .text.answers import (
    AnswerForm,
    AnswerReader,
    CallArguments,
    CallBegun,
    Piece,
    Reasoning,
    Text,
    ToolCall,
    Tools,
    call_format,
    form_of,
    reader_of,
)
from .text.tokenizers import Tokenizer

CHAT_OPTIONS: Final = frozenset(
    ("tools", "tool_choice", "parallel_tool_calls", "response_format", "variables")
)
_TAIL: Final = 8  # tokens that hold the mark of reasoning, if the template has begun it
_FINAL: Final = "<|channel|>final<|message|>"


class ChatRequest(NamedTuple):
    """A conversation as `submit` takes it: `llm.submit(chat.prompt, **chat.options)`.

    reader  makes what reads the answer's text: it gives pieces of text, of reasoning and of calls
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

    def told_apart(self, whole: Completion) -> Completion:
        """The answer, its reasoning and its calls apart from its text."""
        reader = self.reader()
        pieces = [*reader.push(whole.text), *reader.finish()]
        calls = calls_of(pieces)
        ended = "tool_calls" if calls and whole.finish_reason == "stop" else whole.finish_reason
        text, reasoning = (
            "".join(p.text for p in pieces if isinstance(p, kind)) for kind in (Text, Reasoning)
        )
        return replace(whole, text=text, reasoning=reasoning, tool_calls=calls, finish_reason=ended)


def calls_of(pieces: Iterable[Piece]) -> list[ToolCall]:
    """The calls among the pieces of an answer."""
    begun, arguments = list[CallBegun](), list[list[str]]()
    for piece in pieces:
        if isinstance(piece, CallBegun):
            begun.append(piece)
            arguments.append([])
        elif isinstance(piece, CallArguments):
            arguments[piece.number].append(piece.text)
    return [
        ToolCall(each.id, each.name, "".join(texts)) for each, texts in zip(begun, arguments, strict=True)
    ]


def chat_request(
    prompt: list[int] | Parts, template: str, tokenizer: Tokenizer, tools: Tools, response_format: Any
) -> ChatRequest:
    """The request for an answer to a prompt that a chat template has made, with its tools in it."""
    if response_format is not None and tools.definitions:
        raise RequestError("an answer in a format calls no tools: leave out either tools or response_format")
    form = form_of(template, tools=bool(tools.definitions))
    inside = form.thinking is not None and _ends_with(tokenizer, prompt, form.thinking[0])
    if response_format is not None:
        begun = _FINAL if form.channels else _after_reasoning(form, inside=inside)
        return ChatRequest(
            _joined(tokenizer, prompt, begun),
            {"response_format": response_format, "shown": ()},
            partial(reader_of, AnswerForm()),
        )
    if tools.forced:
        prompt, inside = _joined(tokenizer, prompt, _after_reasoning(form, inside=inside)), False
    # Clients of Ollama's API may send any definitions.
    functions = [each["function"] for each in tools.definitions if "function" in each]
    schemas = {each["name"]: each.get("parameters") or {} for each in functions if "name" in each}
    reader = partial(reader_of, form, inside=inside, parallel=tools.parallel, schemas=schemas)
    marks = map(tokenizer.token_id, form.marks)
    shown = tuple(mark for mark in marks if mark is not None and mark in tokenizer.control_ids)
    wanted = call_format(form, tools, tokenizer, inside=inside) if tools.forced or tools.strict else None
    return ChatRequest(prompt, {"response_format": wanted, "shown": shown}, reader)


def _after_reasoning(form: AnswerForm, *, inside: bool) -> str:
    """What ends the reasoning that a template has begun, where the answer has no room for it."""
    return f"\n{form.thinking[1]}\n\n" if inside and form.thinking else ""


def _joined(tokenizer: Tokenizer, prompt: list[int] | Parts, text: str) -> list[int] | Parts:
    """A prompt with more text; one with pictures stays as it is."""
    if not text or not isinstance(prompt, list):
        return prompt
    return [*prompt, *tokenizer.encode(text, add_special=False)]


def _ends_with(tokenizer: Tokenizer, prompt: list[int] | Parts, mark: str) -> bool:
    """Whether a prompt ends with a mark, and space."""
    if not isinstance(prompt, list):
        return False
    return tokenizer.decode(prompt[-_TAIL:], special=True).rstrip().endswith(mark.rstrip())
