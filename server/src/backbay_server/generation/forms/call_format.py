"""Formats of answers that call tools: grammars of the form in which the model writes, and of the arguments' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from backbay_engine import Tokenizer

from ..requests import Format, Tools
from .answer_form import AnswerForm, CallStyle

# llguidance's option: calls are written on one line, so that no model goes on with spaces
_ONE_LINE: Final = {"whitespace_pattern": " ?"}
_ANY: Final = r"(.|\n)*"
_CALL_BEGINS: Final = r'(\[\s*)?\{\s*"(name|type)"'
_RECIPIENT: Final = " to=functions."
_KIND: Final = r"( ?(<\|constrain\|>)?json)?"
_HEADER: Final = rf"{_KIND}(<\|channel\|>(commentary|analysis))?{_KIND} ?<\|message\|>"


def call_format(form: AnswerForm, tools: Tools, tokenizer: Tokenizer, *, inside: bool) -> Format:
    """The format of an answer that is a call, if one is demanded; otherwise of any text, in which calls obey schemas.

    inside  the prompt has begun the reasoning
    """
    assert form.calls is not None
    calls = _Calls(form, form.calls, tools, tokenizer)
    if form.channels:
        rules = calls.in_channels()
    elif form.calls.begin:
        rules = calls.between_marks()
    else:
        rules = calls.bare(inside=inside)
    return {"type": "grammar", "grammar": "\n".join(rules)}


@final
class _Calls:
    """The rules of the calls of tools, in the form of Lark that llguidance takes."""

    def __init__(self, form: AnswerForm, style: CallStyle, tools: Tools, tokenizer: Tokenizer) -> None:
        self._thinking, self._style, self._tools = form.thinking, style, tools
        ids = {mark: tokenizer.token_id(mark) for mark in form.marks}
        # a grammar names control tokens by their numbers; other marks are text
        self._control = {mark: f"<[{id}]>" for mark, id in ids.items() if id in tokenizer.control_ids}

    def between_marks(self) -> Iterator[str]:
        style = self._style
        if self._tools.forced:
            before, after = style.around or ("", "")
            yield f"start: {self._written(before + style.begin)} call {self._written(after)}"
        else:
            others = [token for mark, token in self._control.items() if mark != style.begin]
            mixed = f"(TEXT ({' | '.join(others)}))*" if others else ""
            yield f"start: (head call)* {mixed} TEXT"
            yield f"head: {mixed} " + (
                f"TEXT {self._control[style.begin]}" if style.begin in self._control else "mark"
            )
            yield f"mark[lazy]: TEXT {_text(style.begin)}"
            yield f"TEXT: /{_ANY}/"
        yield from self._alternatives(
            lambda name: self._written(style.opening(name)), self._written(style.closed)
        )

    def bare(self, *, inside: bool) -> Iterator[str]:
        if self._tools.forced:
            yield "start: call"
            yield from self._alternatives(lambda name: _text(self._style.opening(name)), '"}"')
            return
        lead = next((f"{self._control[mark]}?" for mark in self._style.inner if mark in self._control), "")
        others = [_CALL_BEGINS]
        if self._thinking is None:
            yield f"start: {lead} call | OTHER"
        else:
            begin, end = (re.escape(mark).replace("/", r"\/") for mark in self._thinking)
            others.append(begin)
            before = "" if inside else rf"\s*{begin}"
            yield f"start: thought{'' if inside else '?'} ({lead} call | OTHER)"
            yield rf"thought[lazy]: /{before}{_ANY}{end}\s*/"
        yield rf"OTHER: /{_ANY}/ & ~/\s*({'|'.join(others)}){_ANY}/"
        yield r'BEGIN: /\s*\{ ?"name" ?: ?/'
        yield r'MIDDLE: /, ?"(arguments|parameters)" ?: ?/'
        yield from self._alternatives(lambda name: f"BEGIN {_text(_text(name))} MIDDLE", '"}"')

    def in_channels(self) -> Iterator[str]:
        if self._tools.forced:
            yield f"start: {_text(f'<|channel|>commentary{_RECIPIENT}')} call"
        else:
            yield "start: mark call | TEXT"
            yield f"mark[lazy]: TEXT {_text(_RECIPIENT)}"
            yield f"TEXT: /{_ANY}/"
        yield f"HEADER: /{_HEADER}/"
        yield from self._alternatives(lambda name: f"{_text(name)} HEADER", "")

    def _alternatives(self, opening: Callable[[str], str], closing: str) -> Iterator[str]:
        """A rule for each tool, and `call` for all."""
        yield "call: " + " | ".join(f"call_{number}" for number in range(len(self._tools.definitions)))
        for number, tool in enumerate(self._tools.definitions):
            schema = json.dumps(self._schema(tool["function"]))
            yield f"call_{number}: {opening(tool['function']['name'])} %json {schema} {closing}"

    def _schema(self, function: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a tool's arguments must be: as its schema says, unless the tool is free to be called with any."""
        obeyed = self._tools.forced or function["name"] in self._tools.strict
        given = (function.get("parameters") if obeyed else None) or {"type": "object"}
        return {**given, "x-guidance": _ONE_LINE}

    def _written(self, text: str) -> str:
        """A text with marks, as a grammar has it."""
        marks = "|".join(map(re.escape, self._control))
        parts = re.split(f"({marks})", text) if marks else [text]
        return " ".join(self._control.get(part) or _text(part) for part in parts if part)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
