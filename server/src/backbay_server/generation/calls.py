"""The parts of an answer, told apart while its text grows: reasoning, text, and calls of tools."""

from __future__ import annotations

import json
import re
import secrets
import string
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, final

import msgspec


class Text(NamedTuple):
    """A piece of the answer's text."""

    text: str


class Reasoning(NamedTuple):
    """A piece of the reasoning before the answer."""

    text: str


class CallBegun(NamedTuple):
    """A call of a tool; its arguments follow."""

    number: int
    id: str
    name: str


class CallArguments(NamedTuple):
    """A piece of a call's arguments, which together are JSON as the model wrote it."""

    number: int
    text: str


Piece: TypeAlias = Text | Reasoning | CallBegun | CallArguments

_THINK, _THOUGHT = "<think>", "</think>"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_MARKS: Final = ("[TOOL_CALLS]", "<|python_tag|>")  # may precede calls without marks around them
_BARE: Final = ('{"name":"', '[{"name":"', '{"type":"function"')
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_ID_LETTERS: Final = string.ascii_letters + string.digits


@final
@dataclass(frozen=True)
class AnswerForm:
    """How a model writes the parts of its answers.

    reasons   reasoning stands in <think> and </think>, at the beginning
    marked    calls stand in <tool_call> and </tool_call>
    bare      an answer that is JSON with a name and arguments is a call, or several in a list
    """

    reasons: bool = False
    marked: bool = False
    bare: bool = False


PLAIN: Final = AnswerForm()


def form_of(template: str, *, tools: bool) -> AnswerForm:
    """The form of answers to the prompts of a chat template, which shows the model how to call."""
    reasons, marked = _THOUGHT in template, _CALL in template
    return AnswerForm(reasons, tools and marked, tools and not marked)


@final
class AnswerParser:
    """Gives the parts of a text that comes in pieces. What may be the beginning of a mark is held back.

    A call that is no JSON, or lacks a name, stays text. `inside` says that the prompt has begun the reasoning.
    """

    def __init__(self, form: AnswerForm, *, inside: bool = False) -> None:
        self._form, self._held, self._given = form, "", list[Piece]()
        self._call: _Call | None = None
        self._state = self._reasoning if inside else self._beginning
        self.calls = 0  # that have begun

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        self._held += text
        while self._held and self._state():
            pass
        given, self._given = self._given, []
        return given

    def finish(self) -> list[Piece]:
        """The rest, at the answer's end."""
        held, self._held = self._held, ""
        if self._call is not None:
            self._add(self._call.finish())
        elif self._state == self._bare:
            self._whole(held)
        elif self._state == self._reasoning:
            self._give(Reasoning(held))
        elif held.strip() or not self.calls:  # the space between calls says nothing
            self._give(Text(held))
        given, self._given = self._given, []
        return given

    # -- states: each takes of the held text what it can; False: it waits for more ---------------------------

    def _beginning(self) -> bool:
        begun = self._held.lstrip()
        if self._form.reasons and begun.startswith(_THINK):
            self._held, self._state = begun.removeprefix(_THINK), self._reasoning
        elif self._form.reasons and _THINK.startswith(begun):
            return False
        else:
            self._state = self._bare if self._form.bare else self._text
        return True

    def _reasoning(self) -> bool:
        reasoning, ended, rest = self._held.partition(_THOUGHT)
        if ended:
            self._give(Reasoning(reasoning))
            self._held, self._state = rest, self._gap
            return True
        certain = len(reasoning) - _possible(reasoning, _THOUGHT)
        self._give(Reasoning(reasoning[:certain]))
        self._held = reasoning[certain:]
        return False

    def _gap(self) -> bool:
        """Space after reasoning, and after a call, says nothing."""
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._bare if self._form.bare else self._text
        return bool(self._held)

    def _text(self) -> bool:
        if not self._form.marked:
            self._give(Text(self._held))
            self._held = ""
            return False
        text, begun, rest = self._held.partition(_CALL)
        if begun:
            self._give(Text(text.rstrip()))
            self._held, self._call, self._state = rest, _Call(self.calls), self._calling
            return True
        certain = len(text[: len(text) - _possible(text, _CALL)].rstrip())
        self._give(Text(text[:certain]))
        self._held = text[certain:]
        return False

    def _calling(self) -> bool:
        assert self._call is not None
        text, ended, rest = self._held.partition(_CALLED)
        kept = 0 if ended else _possible(text, _CALLED)
        self._add(self._call.push(text[: len(text) - kept]))
        if not ended:
            self._held = text[len(text) - kept :]
            return False
        self._add(self._call.finish(_CALLED))
        self._held, self._call, self._state = rest, None, self._gap
        return True

    def _bare(self) -> bool:
        """Wait for the end of what may be calls."""
        begun = _unmarked(self._held)
        packed = re.sub(r"\s", "", begun)
        if not any(packed.startswith(each) or each.startswith(packed) for each in (*_BARE, *_MARKS)):
            self._state = self._text
            return True
        return False

    # -- pieces ----------------------------------------------------------------------------------------------

    def _whole(self, text: str) -> None:
        calls = _calls_of(_unmarked(text))
        if not calls:
            self._give(Text(text))
        for name, arguments in calls:
            self._add([CallBegun(self.calls, new_id(), name), CallArguments(self.calls, arguments)])

    def _give(self, piece: Text | Reasoning) -> None:
        if piece.text:
            self._given.append(piece)

    def _add(self, pieces: list[Piece]) -> None:
        self.calls += sum(isinstance(piece, CallBegun) for piece in pieces)
        self._given += pieces


@final
class _Call:
    """One call in marks: its arguments are passed on while they grow."""

    def __init__(self, number: int) -> None:
        self._number, self._text = number, ""
        self._arguments: _Value | None = None

    def push(self, text: str) -> list[Piece]:
        if self._arguments is not None:
            return self._grown(text)
        self._text += text
        head = _HEAD.match(self._text)
        if head is None:
            return []
        self._arguments = _Value()
        begun = CallBegun(self._number, new_id(), json.loads(head[1], strict=False))
        return [begun, *self._grown(self._text[head.end() :])]

    def finish(self, mark: str = "") -> list[Piece]:
        if self._arguments is not None:
            return []
        calls = _calls_of(self._text)
        if not calls:
            return [Text(f"{_CALL}{self._text}{mark}")]
        name, arguments = calls[0]
        return [CallBegun(self._number, new_id(), name), CallArguments(self._number, arguments)]

    def _grown(self, text: str) -> list[Piece]:
        assert self._arguments is not None
        more = self._arguments.push(text)
        return [CallArguments(self._number, more)] if more else []


@final
class _Value:
    """Cuts a text at the end of the JSON object with which it begins."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped, self._over = 0, False, False, False

    def push(self, text: str) -> str:
        if self._over:
            return ""
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
                    self._over = True
                    return text[: at + 1]
        return text


def new_id() -> str:
    """The id of a call: nine letters and digits, as Mistral's templates demand."""
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call; none if the answer's end has cut them."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _unmarked(text: str) -> str:
    begun = text.lstrip()
    for mark in _MARKS:
        begun = begun.removeprefix(mark).lstrip()
    return begun


def _calls_of(text: str) -> list[tuple[str, str]]:
    """Names and arguments of the calls that a text of JSON is; none if it is something else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call_of(each) for each in (found if isinstance(found, list) else [found])]
    return [] if None in calls else [call for call in calls if call is not None]


def _call_of(found: Any) -> tuple[str, str] | None:
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    arguments = found.get("arguments", found.get("parameters", {}))
    return found["name"], arguments if isinstance(arguments, str) else json.dumps(
        arguments, ensure_ascii=False
    )


def _possible(text: str, mark: str) -> int:
    """The length of the text's end that may begin the mark."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if mark.startswith(text[-length:])), 0)
