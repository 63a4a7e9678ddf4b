"""Reading answers whose parts stand between marks: reasoning, text and calls, told apart while the text grows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from ..sampling.stops import possible_mark
from .answer_form import AnswerForm
from .arguments import ArgumentReader, JsonArgumentReader, Schema
from .pieces import CallArguments, HoldingReader, Piece, Reasoning, Text, first_mark

_HIDDEN: Final = ("[TOOL_CALLS]", "<|python_tag|>")  # may precede calls that have no marks around them
_HEAD: Final = 256  # letters in which the beginning of a call shows
_LONGEST: Final = 4096  # letters before the arguments of a call
_BARE_NAME: Final = re.compile(r'\[?\s*\{\s*"name"')
_BARE: Final = ('{"name":"', '[{"name":"', '{"type":"function"', '[{"type":"function"')


@final
class MarkedAnswerReader(HoldingReader):
    """Gives the parts of a text that comes in pieces. What may be the beginning of a mark is held back.

    A call that is no JSON, or lacks a name, stays text.

    inside   whether the prompt has begun the reasoning
    schemas  of the tools' arguments, by the tools' names
    """

    def __init__(
        self, form: AnswerForm, *, inside: bool = False, schemas: Mapping[str, Schema] | None = None
    ) -> None:
        super().__init__()
        self._style, self._schemas = form.calls, schemas or {}
        self._think, self._thought = form.thinking or ("", "")
        style = self._style
        self._marks = () if style is None else tuple(filter(None, (style.begin, *style.around)))
        self._value: ArgumentReader | None = None  # the arguments that grow
        self._outer: ArgumentReader | None = None  # the object that holds them
        self._state = self._reasoning if inside and self._thought else self._beginning

    def _go_on(self) -> bool:
        return self._state()

    @property
    def is_calling(self) -> bool:
        return self._state == self._calling

    def finish(self) -> Sequence[Piece]:
        held, self._held = self._held, ""
        if self._state == self._calling:
            if self._value is None:
                self._whole(held, "" if self._style is None else self._style.begin)
        elif self._state == self._bare:
            self._whole(held, "")
        elif self._state == self._reasoning:
            self._give(Reasoning(held))
        elif self._state != self._called and (held.strip() or not self.calls):  # space between says nothing
            self._give(Text(held))
        return self._taken()

    # -- states: each takes of the held text what it can; False: it waits for more ---------------------------

    def _beginning(self) -> bool:
        begun = self._held.lstrip()
        if self._think and begun.startswith(self._think):
            self._held, self._state = begun.removeprefix(self._think), self._reasoning
        elif self._think and self._think.startswith(begun):
            return False
        else:
            self._state = self._text_state()
        return True

    def _reasoning(self) -> bool:
        reasoning, ended, rest = self._held.partition(self._thought)
        if ended:
            self._give(Reasoning(reasoning))
            self._held, self._state = rest, self._gap
            return True
        certain = len(reasoning) - possible_mark(reasoning, (self._thought,))
        self._give(Reasoning(reasoning[:certain]))
        self._held = reasoning[certain:]
        return False

    def _gap(self) -> bool:
        """Space after reasoning, and after a call, says nothing."""
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._text_state()
        return bool(self._held)

    def _text(self) -> bool:
        if not self._marks:
            self._give(Text(self._held))
            self._held = ""
            return False
        at, mark = first_mark(self._held, self._marks)
        if mark:
            assert self._style is not None
            self._give(Text(self._held[:at].rstrip()))
            self._held = self._held[at + len(mark) :]
            self._state = self._calling if mark == self._style.begin else self._gap
            return True
        certain = len(self._held[: len(self._held) - possible_mark(self._held, self._marks)].rstrip())
        self._give(Text(self._held[:certain]))
        self._held = self._held[certain:]
        return False

    def _bare(self) -> bool:
        """Wait until it is certain whether the text is a call."""
        begun = _unmarked(self._held)
        packed = re.sub(r"\s", "", begun[:_HEAD])
        if not any(packed.startswith(each) or each.startswith(packed) for each in (*_BARE, *_HIDDEN)):
            self._state = self._text
            return True
        if self._style is not None and self._style.head.match(begun):
            self._held, self._state = begun, self._calling
            return True
        if len(begun) > _LONGEST and _BARE_NAME.match(begun):  # no head of a call is so long
            self._state = self._text
            return True
        return False

    def _calling(self) -> bool:
        """Inside of a call: its arguments are passed on while they grow."""
        assert self._style is not None
        if self._value is not None:
            more, self._held = self._value.cut(self._held)
            if more:
                self._given.append(CallArguments(self._begun - 1, more))
            if not self._value.over:
                return False
            self._value, self._state = None, self._called
            return bool(self._held)
        head = self._style.head.match(self._held)
        if head is not None and (name := _name_of(head)):
            self._begin_call(name, head.groupdict().get("id"))
            in_json = bool(head["json"])
            self._held = self._held[head.end() :]
            self._value = (
                JsonArgumentReader() if in_json else self._style.arguments(self._schemas.get(name, {}))
            )
            self._outer = JsonArgumentReader(depth=1) if in_json else None
            return True
        if not self._style.end or self._style.end not in self._held:
            return False
        text, _, rest = self._held.partition(self._style.end)
        self._whole(text, self._style.begin, self._style.end)
        self._held, self._state = rest, self._gap
        return True

    def _called(self) -> bool:
        """After the arguments of a call: what is left of it says nothing."""
        assert self._style is not None
        if self._outer is not None:
            _, self._held = self._outer.cut(self._held)
            if not self._outer.over:
                return False
            self._outer = None
        if self._style.end:
            _, ended, rest = self._held.partition(self._style.end)
            if not ended:
                self._held = self._held[len(self._held) - possible_mark(self._held, (self._style.end,)) :]
                return False
            self._held = rest
        else:
            self._held = self._held.lstrip(self._style.dropped)
            if not self._held:
                return False
        self._state = self._bare if self._held.startswith("{") else self._gap  # a list may have more of them
        return True

    def _text_state(self) -> Callable[[], bool]:
        return self._bare if self._style is not None and not self._style.begin else self._text

    # -- pieces ----------------------------------------------------------------------------------------------

    def _whole(self, text: str, begin: str, end: str = "") -> None:
        """The calls of a text without more to come; the text with its marks, if it is none."""
        calls = _calls_of(_unmarked(text))
        if not begin and any(arguments is None for _, arguments in calls):  # JSON that happens to have a name
            calls = []
        if not calls:
            self._give(Text(f"{begin}{text}{end}"))
        for name, arguments in calls:
            self._begin_call(name)
            self._given.append(CallArguments(self._begun - 1, "{}" if arguments is None else arguments))

    def _give(self, piece: Text | Reasoning) -> None:
        if piece.text:
            self._given.append(piece)


def _name_of(head: re.Match[str]) -> str:
    """The name in the head of a call; empty if it is none."""
    if head["json"] is None:
        return head["plain"]
    try:
        name: str = json.loads(head["json"], strict=False)
        name.encode()
    except ValueError:  # an escape that JSON does not have, or half a surrogate pair
        return ""
    return name


def _unmarked(text: str) -> str:
    begun = text.lstrip()
    for mark in _HIDDEN:
        begun = begun.removeprefix(mark).lstrip()
    return begun


def _calls_of(text: str) -> list[tuple[str, str | None]]:
    """Names and arguments of the calls that a text of JSON is; none if it is something else. A call may lack arguments."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call_of(each) for each in (found if isinstance(found, list) else [found])]
    return [] if None in calls else [call for call in calls if call is not None]


def _call_of(found: Any) -> tuple[str, str | None] | None:
    if isinstance(found, dict) and isinstance(found.get("function"), dict):
        found = found["function"]
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return None
    name, arguments = found["name"], found.get("arguments", found.get("parameters"))
    has_none = not ({"arguments", "parameters"} & found.keys())
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        f"{name}{text}".encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return None
    return (name, None if has_none else text) if name else None
