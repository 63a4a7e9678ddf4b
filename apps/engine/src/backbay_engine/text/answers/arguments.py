"""The arguments of a call: JSON, made while the text grows, of whatever form the model writes them in."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from ..sampling.stops import possible_mark
from .pieces import parse_json

Schema: TypeAlias = Mapping[str, Any]
_TEXTS: Final = frozenset(("string",))
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}  # as templates in Python write them


class ArgumentReader(ABC):
    """Cuts the arguments from the beginning of a text that grows."""

    over = False  # whether they are whole

    def cut(self, text: str) -> tuple[str, str]:
        """JSON of what is certain, and the text that is left: it needs more text, or comes after the arguments."""
        made = list[str]()
        while not self.over and (step := self._step(text)) is not None:
            piece, text = step
            made.append(piece)
        return "".join(made), text

    @abstractmethod
    def _step(self, text: str) -> tuple[str, str] | None:
        """JSON of the text's beginning, and the rest; None: more text must come first."""


@final
class JsonArgumentReader(ArgumentReader):
    """JSON already: the object with which the text begins, or in which it is, `depth` deep."""

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._quoted, self._escaped = depth, False, False

    def _step(self, text: str) -> tuple[str, str] | None:
        for at, letter in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._quoted = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.over = True
                    return text[: at + 1], text[at + 1 :]
        return (text, "") if text else None


@final
@dataclass(frozen=True)
class ParameterTags:
    """How parameters stand in a call, each value between marks."""

    begin: str  # with what a parameter begins
    # matches what stands before a value; its group `key` is the name, and `text`, if it has it, is "true" of a text
    head: re.Pattern[str]
    close: str  # the mark after a value
    opened: str  # what a model writes before a value, with KEY for the name, and TEXT for "true" or "false"
    closed: str  # what it writes after a value; a line's end there is no part of a text

    @property
    def ends(self) -> tuple[str, ...]:
        """The marks that end a text, the longest first."""
        return (f"\n{self.close}", self.close) if self.closed.startswith("\n") else (self.close,)

    def opening(self, key: str, *, text: bool) -> str:
        return self.opened.replace("TEXT", "true" if text else "false").replace("KEY", key)


@final
class TaggedArgumentReader(ArgumentReader):
    """Parameters between marks. Texts are passed on while they grow, other values once they are whole."""

    def __init__(self, tags: ParameterTags, end: str, schema: Schema) -> None:
        self._tags, self._end = tags, end  # the mark after the last parameter, which is left in the text
        self._schema = schema  # of the arguments: it says which parameters are texts
        self._count = 0
        self._text: bool | None = None  # whether the value that grows is a text; None: there is none
        self._types: frozenset[str] | None = None  # that it may have
        self._json: JsonArgumentReader | None = None  # all arguments, if the model writes JSON instead

    def _step(self, text: str) -> tuple[str, str] | None:
        if self._json is not None:
            piece, rest = self._json.cut(text)
            self.over = self._json.over
            return (piece, rest) if piece else None
        if self._text is None:
            return self._between(text.lstrip())
        return self._growing(text) if self._text else self._whole(text)

    def _between(self, text: str) -> tuple[str, str] | None:
        head = self._tags.head.match(text)
        if head is not None:
            return self._begun(head), text[head.end() :]
        if text.startswith(self._end):
            self.over = True
            return "}" if self._count else "{}", text
        if text.startswith("{") and not self._count:
            self._json = JsonArgumentReader()
            return "", text
        marks = self._tags.begin, self._end
        if not text or any(mark.startswith(text) or text.startswith(mark) for mark in marks):
            return None
        return "", text[1:]  # no part of a parameter

    def _begun(self, head: re.Match[str]) -> str:
        """What comes before a value."""
        self._count += 1
        told, types = head.groupdict().get("text"), types_of(parameter_schema(self._schema, head["key"]))
        self._text, self._types = (told == "true", None) if told else (types == _TEXTS, types)
        before = "{" if self._count == 1 else ", "
        return f"{before}{json_string(head['key'])}: " + ('"' if self._text else "")

    def _growing(self, text: str) -> tuple[str, str] | None:
        value, ended, rest = text.partition(self._tags.close)
        if ended:
            self._text = None
            value = value.removesuffix("\n") if len(self._tags.ends) > 1 else value
            return f'{_escaped(value)}"', rest
        certain = len(text) - possible_mark(text, self._tags.ends)
        return (_escaped(text[:certain]), text[certain:]) if certain else None

    def _whole(self, text: str) -> tuple[str, str] | None:
        value, ended, rest = text.partition(self._tags.close)
        if not ended:
            return None
        self._text = None
        return _json_of(value.strip(), self._types), rest


@final
class LooseArgumentReader(ArgumentReader):
    """An object like one of JSON, whose names have no quotes, and whose texts stand between two marks."""

    def __init__(self, quote: str) -> None:
        self._quote, self._inside = quote, False
        self._open = list[str]()  # the objects and lists around
        self._value = False  # a value comes, no name

    def _step(self, text: str) -> tuple[str, str] | None:
        if self._inside:
            return self._growing(text)
        if not text or (self._quote.startswith(text) and text != self._quote):
            return None
        if text.startswith(self._quote):
            self._inside = True
            return '"', text[len(self._quote) :]
        if text[0] in "{}[],:" or text[0].isspace():
            return self._mark(text[0]), text[1:]
        return self._word(text)

    def _growing(self, text: str) -> tuple[str, str] | None:
        value, ended, rest = text.partition(self._quote)
        if ended:
            self._inside = False
            return f'{_escaped(value)}"', rest
        certain = len(text) - possible_mark(text, (self._quote,))
        return (_escaped(text[:certain]), text[certain:]) if certain else None

    def _mark(self, letter: str) -> str:
        if letter in "{[":
            self._open.append(letter)
        elif letter in "}]":
            self._open.pop()
            self.over = not self._open
        if letter in "{[,":
            self._value = bool(self._open) and self._open[-1] == "["
        elif letter == ":":
            self._value = True
        return letter.strip()

    def _word(self, text: str) -> tuple[str, str] | None:
        """A name, or a value that is no text."""
        found = _QUOTED.match(text) if text[0] == '"' else (_VALUE if self._value else _NAME).match(text)
        if found is None or found.end() == len(text):
            return None
        word = found[0].strip()
        plain = _is_json(word) and (self._value or word[0] == '"')
        return word if plain else json_string(word), text[found.end() :]


_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_VALUE, _NAME = re.compile(r"[^,\]}]+"), re.compile(r"[^:,\]}]+")


def parameter_schema(schema: Schema, key: str) -> Schema:
    """The schema of a parameter; an empty one if there is none."""
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def types_of(schema: Schema) -> frozenset[str] | None:
    """The types of JSON that values of a schema have; None if it does not say."""
    choices = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(choices, list) and choices:
        return frozenset(map(_type, choices))
    either = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(either, list) and either:
        found = [types_of(each) if isinstance(each, Mapping) else None for each in either]
        return None if None in found else frozenset[str]().union(*(each for each in found if each))
    given = schema.get("type")
    if isinstance(given, str):
        return frozenset((given,))
    return frozenset(map(str, given)) if isinstance(given, list) and given else None


def is_text(schema: Schema) -> bool:
    """Whether values of a schema are texts, and nothing else."""
    return types_of(schema) == _TEXTS


def _json_of(text: str, types: frozenset[str] | None) -> str:
    """A value that was written without quotes, of one of these types if it can be."""
    plain = _PYTHON.get(text, text)
    try:
        kind = _type(parse_json(plain))
    except (ValueError, RecursionError):
        return json_string(text)
    kinds = {kind, "number"} if kind == "integer" else {kind}
    return plain if types is None or "string" not in types or kinds & types else json_string(text)


def _type(value: Any) -> str:
    """The type of a value, in the words of JSON schemas."""
    return next(name for name, kinds in _TYPES if isinstance(value, kinds))


_TYPES: Final[tuple[tuple[str, Any], ...]] = (
    ("null", type(None)),
    ("boolean", bool),
    ("integer", int),
    ("number", float),
    ("string", str),
    ("array", list),
    ("object", Mapping),
)


def _is_json(text: str) -> bool:
    try:
        parse_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return json_string(text)[1:-1]
