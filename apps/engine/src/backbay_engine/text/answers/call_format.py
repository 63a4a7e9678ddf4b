"""Formats of answers that call tools: grammars of the form in which the model writes, and of the arguments' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, final

from ...errors import ToolsError
from ..tokenizers import Tokenizer
from .answer_form import AnswerForm, CallStyle
from .arguments import ParameterTags, Schema, is_text
from .arguments import json_string as _text
from .pieces import first_mark
from .tools import Tools

# llguidance's option: calls are written on one line, so that no model goes on with spaces
_ONE_LINE: Final = {"whitespace_pattern": " ?"}
_ANY: Final = r"(.|\n)*"
_CALL_BEGINS: Final = r'(\[\s*)?\{\s*"(name|type)"'
_OBJECT: Final = frozenset(("type", "properties", "required", "additionalProperties", "$defs", "definitions"))
_TEXT: Final = frozenset(("type", "enum", "const", "$defs", "definitions"))
_NOTES: Final = frozenset(
    ("title", "description", "default", "examples", "deprecated", "$schema", "$id", "x-guidance")
)
_FINAL: Final = "<|channel|>final<|message|>"
_RECIPIENT: Final = " to=functions."
_KIND: Final = r"( | ?<\|constrain\|>)json"
_COMMENTARY: Final = _text(f"<|channel|>commentary{_RECIPIENT}")
_HEADER: Final = rf"({_KIND})?(<\|channel\|>(commentary|analysis))?({_KIND})? ?<\|message\|>"


class AnswerRule(NamedTuple):
    """What an answer without calls is, as the right side of a rule of Lark."""

    rule: str
    is_json: bool


def call_format(
    form: AnswerForm,
    tools: Tools,
    tokenizer: Tokenizer,
    *,
    inside: bool,
    answer: AnswerRule | None = None,
) -> Mapping[str, Any]:
    """The format of an answer that is a call, if one is demanded; otherwise of any text, in which calls obey schemas.

    inside  the prompt has begun the reasoning
    answer  what an answer that calls nothing is; None: any text, with calls anywhere in it
    """
    assert form.calls is not None
    calls = _Calls(form, form.calls, tools, tokenizer)
    if answer is not None and not tools.forced:
        rules = calls.or_answer(answer)
    elif form.channels:
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
        self._channels = form.channels
        ids = {mark: tokenizer.token_id(mark) for mark in form.marks}
        # a grammar names control tokens by their numbers; other marks are text
        self._control = {mark: f"<[{id}]>" for mark, id in ids.items() if id in tokenizer.control_ids}

    def between_marks(self) -> Iterator[str]:
        style = self._style
        if self._tools.forced:
            before, after = style.around or ("", "")
            first, last = before + style.joint + style.begin, style.joint + after
            yield f"start: {self._written(first)} call {self._written(last)}"
        else:
            others = [mark for mark in (*self._control, *style.around) if mark not in style.begin]
            free = [*dict.fromkeys(filter(None, map(self._from_control, others)))]
            mixed = f"(TEXT ({' | '.join(free)}))*" if free else ""
            begin = self._from_control(style.begin)
            yield f"start: (head call)* {mixed} TEXT"
            yield f"head: {mixed} " + (f"TEXT {begin}" if begin else "mark")
            yield f"mark[lazy]: TEXT {_text(style.begin)}"
            yield f"TEXT: /{_ANY}/"
        yield from self._marked()

    def bare(self, *, inside: bool) -> Iterator[str]:
        if self._tools.forced:
            yield "start: call"
            yield from self._alternatives(lambda name: _text(self._style.opening(name)), '"}"')
            return
        others = [_CALL_BEGINS]
        if self._thinking is None:
            yield f"start: {self._lead} call | OTHER"
        else:
            begin, end = map(_pattern, self._thinking)
            others.append(begin)
            before = "" if inside else rf"\s*{begin}"
            yield f"start: thought{'' if inside else '?'} ({self._lead} call | OTHER)"
            yield rf"thought[lazy]: /{before}{_ANY}{end}\s*/"
        yield rf"OTHER: /{_ANY}/ & ~/\s*({'|'.join(others)}){_ANY}/"
        yield from self._unmarked()

    def in_channels(self) -> Iterator[str]:
        if self._tools.forced:
            yield f"start: {_COMMENTARY} call"
        else:
            yield "start: mark call | TEXT"
            yield f"mark[lazy]: TEXT {_text(_RECIPIENT)}"
            yield f"TEXT: /{_ANY}/"
        yield from self._headed()

    def or_answer(self, answer: AnswerRule) -> Iterator[str]:
        """Calls alone, or an answer."""
        style = self._style
        if self._channels:
            yield f"start: {_COMMENTARY} call | {_text(_FINAL)} answer"
            yield from self._headed()
        elif style.begin:
            begin, (before, after) = self._written(style.begin), style.around or ("", "")
            first, last = self._written(before + style.joint), self._written(style.joint + after)
            further = f"(GAP? {begin} call)*" if self._tools.parallel else ""
            yield f"start: {first} {begin} call {further} {last} | answer"
            yield r"GAP: /\s+/"
            yield from self._marked()
        else:
            yield f"start: {self._lead} call | answer"
            yield from self._in_pieces() if answer.is_json else self._unmarked()
        yield f"answer: {answer.rule}"

    # -- calls, without what is around them ------------------------------------------------------------------

    @property
    def _lead(self) -> str:
        """The control token that may precede a bare call, if there is one."""
        return next((f"{self._control[mark]}?" for mark in self._style.inner if mark in self._control), "")

    def _marked(self) -> Iterator[str]:
        closing = self._written(self._style.closed)
        yield from self._alternatives(lambda name: self._written(self._style.opening(name)), closing)

    def _headed(self) -> Iterator[str]:
        yield f"HEADER: /{_HEADER}/"
        yield from self._alternatives(lambda name: f"{_text(name)} HEADER", "")

    def _unmarked(self) -> Iterator[str]:
        yield r'BEGIN: /\s*\{ ?"name" ?: ?/'
        yield r'MIDDLE: /, ?"(arguments|parameters)" ?: ?/'
        yield from self._alternatives(lambda name: f"BEGIN {_text(_text(name))} MIDDLE", '"}"')

    def _in_pieces(self) -> Iterator[str]:
        """Bare calls in the lexemes of JSON, so that other JSON may begin like them."""
        begin, middle = r'"{" S? "\"name\"" S? ":" S?', r'S? "," S? "\"parameters\"" S? ":" S?'
        yield "S: / /"
        yield from self._alternatives(lambda name: f"{begin} {_text(_text(name))} {middle}", 'S? "}"')

    def _alternatives(self, opening: Callable[[str], str], closing: str) -> Iterator[str]:
        """A rule for each tool, and `call` for all."""
        yield "call: " + " | ".join(f"call_{number}" for number in range(len(self._tools.definitions)))
        for number, tool in enumerate(self._tools.definitions):
            function = tool["function"]
            obeyed = self._tools.forced or function["name"] in self._tools.strict
            schema = (function.get("parameters") if obeyed else None) or {"type": "object"}
            arguments, *rules = self._arguments(f"{number}", {**schema, "x-guidance": _ONE_LINE})
            yield f"call_{number}: {opening(function['name'])} {arguments} {closing}"
            yield from rules

    def _arguments(self, place: str, schema: Schema) -> Iterator[str]:
        """What stands for arguments that obey a schema, then its rules."""
        if self._style.tags is not None:
            yield from self._parameters(place, self._style.tags, schema)
        elif self._style.quote:
            yield from self._loose_arguments(place, schema)
        else:
            yield f"%json {json.dumps(schema)}"

    def _loose_arguments(self, place: str, schema: Schema) -> Iterator[str]:
        """Any arguments whose texts stand between marks, which only control tokens tell from the rest."""
        quote = self._control.get(self._style.quote)
        if quote is None or self._style.end not in self._control or schema.keys() - {"type", "x-guidance"}:
            raise _not_demanded("arguments")
        yield f"loose_{place} ({quote} loose_{place})*"
        yield f"loose_{place}: /{_ANY}/"

    def _parameters(self, place: str, tags: ParameterTags, schema: Schema) -> Iterator[str]:
        """Parameters between marks, in the order of the schema."""
        _require_known(schema, _OBJECT)
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        are_schemas = isinstance(properties, Mapping)
        are_schemas = are_schemas and all(isinstance(each, Mapping) for each in properties.values())
        if not isinstance(required, list | tuple) or not are_schemas:
            raise _not_demanded("properties that are no schemas")
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        if properties or schema.get("additionalProperties") is False:
            names = [f"parameter_{place}_{number}" for number in range(len(properties))]
            pairs = zip(names, properties, strict=True)
            yield " ".join(name if key in required else f"{name}?" for name, key in pairs)
        else:
            names = [f"parameter_{place}_any"]
            yield f"({names[0]})*"
            properties = {"": {"type": "string"}}
        for name, (key, value) in zip(names, properties.items(), strict=True):
            yield from self._parameter(name, tags, key, {**value, **shared, "x-guidance": _ONE_LINE})

    def _parameter(self, name: str, tags: ParameterTags, key: str, schema: Schema) -> Iterator[str]:
        """The rules of a parameter; an empty key is any."""
        before, _, after = tags.opening("\0", text=is_text(schema)).partition("\0")
        opening = f"{self._written(before)} {_text(key) if key else f'{name}_key'} {self._written(after)}"
        if not key:
            yield rf'{name}_key: /[^<>"\s]+/'
        if not is_text(schema):
            yield f"{name}: {opening} %json {json.dumps(schema)} {self._written(tags.closed)}"
            return
        _require_known(schema, _TEXT)
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices:
            chosen = " | ".join(map(_text, choices))
            yield f"{name}: {opening} ({chosen}) {self._written(tags.closed)}"
            return
        left, right = self._cut(tags.close)
        _, _, rest = tags.closed.partition(tags.close)
        yield f"{name}: {opening} {name}_value {right} {self._written(rest)}"
        lazy = "" if right else "[lazy]"
        yield f"{name}_value{lazy}: /{_ANY}{_pattern(left)}/"

    def _cut(self, mark: str) -> tuple[str, str]:
        """The text of a mark before its first control token, and the rest as a grammar has it."""
        at, _ = first_mark(mark, [*self._control])
        return (mark, "") if at < 0 else (mark[:at], self._written(mark[at:]))

    def _from_control(self, mark: str) -> str:
        """A mark from its first control token on, before which any text may stand; empty if it has none."""
        return self._cut(mark)[1]

    def _written(self, text: str) -> str:
        """A text with marks, as a grammar has it."""
        marks = "|".join(map(re.escape, self._control))
        parts = re.split(f"({marks})", text) if marks else [text]
        return " ".join(self._control.get(part) or _text(part) for part in parts if part)


def _require_known(schema: Schema, known: frozenset[str]) -> None:
    """ToolsError if a schema has a keyword that marks around parameters cannot obey."""
    unknown = sorted(schema.keys() - known - _NOTES)
    if unknown:
        raise _not_demanded(", ".join(unknown))


def _not_demanded(what: str) -> ToolsError:
    return ToolsError(
        f"in the form in which this model writes calls, {what} cannot be demanded: leave out strict, "
        "and let tool_choice be auto"
    )


def _pattern(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
