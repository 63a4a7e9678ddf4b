"""How models write reasoning and calls, as their chat templates show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, final

_NAME: Final = "NAME"


def _head(plain: str = "(?P<plain>(?!))") -> re.Pattern[str]:
    """What stands before a call's arguments: the name in a form of its own, or in JSON."""
    quoted = r'\[?\s*\{\s*"name"\s*:\s*(?P<json>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:'
    return re.compile(rf"\s*(?:{plain}|{quoted})\s*(?=\{{)")


@final
@dataclass(frozen=True)
class CallStyle:
    """How calls stand in a text.

    begin     the mark before each call; empty: the whole answer is the call, or several in a list
    end       the mark after each call; empty: a call ends with its arguments
    head      what stands between `begin` and the arguments; its group `plain` or `json` is the name
    opened    what a model writes after `begin`, with NAME for the name, when it has to call
    closed    what it writes after the arguments
    around    marks before the first call and after the last one, which say nothing
    inner     marks inside of a call
    dropped   letters after a call that say nothing
    """

    begin: str
    end: str
    opened: str
    closed: str
    head: re.Pattern[str] = field(default_factory=_head)
    around: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    dropped: str = ""

    def opening(self, name: str) -> str:
        """What stands between `begin` and the arguments of a tool's call."""
        quoted = json.dumps(name, ensure_ascii=False)
        return (
            self.opened.replace(f'"{_NAME}"', quoted)
            if '"' in self.opened
            else self.opened.replace(_NAME, name)
        )


_LIST: Final = "}],; \n\t"
HERMES: Final = CallStyle(
    "<tool_call>", "</tool_call>", '\n{"name": "NAME", "arguments": ', "}\n</tool_call>"
)
BARE: Final = CallStyle(
    "", "", '{"name": "NAME", "parameters": ', "}", inner=("<|python_tag|>",), dropped=_LIST
)
_ARGS: Final = r"(?P<plain>[\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]"
MISTRAL: Final = CallStyle(
    "[TOOL_CALLS]", "", "NAME[ARGS]", "", _head(_ARGS), inner=("[ARGS]", "[CALL_ID]"), dropped=_LIST
)
OLD_MISTRAL: Final = CallStyle("[TOOL_CALLS]", "", '[{"name": "NAME", "arguments": ', "}]", dropped=_LIST)
_CALL, _CALLED, _SEP = (
    f"<\uff5ctool\u2581{name}\uff5c>" for name in ("call\u2581begin", "call\u2581end", "sep")
)
_AROUND: Final = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
_DEEPSEEK_HEAD: Final = _head(
    rf"(?:function{_SEP})?(?P<plain>[^\s<\uff5c{{`]+)(?:{_SEP}|\s*```(?:json)?|(?=\s))"
)
DEEPSEEK: Final = CallStyle(
    _CALL, _CALLED, f"NAME{_SEP}", _CALLED, _DEEPSEEK_HEAD, around=_AROUND, inner=(_SEP,)
)
DEEPSEEK_R1: Final = CallStyle(
    _CALL,
    _CALLED,
    f"function{_SEP}NAME\n```json\n",
    f"\n```{_CALLED}",
    _DEEPSEEK_HEAD,
    around=_AROUND,
    inner=(_SEP,),
)


@final
@dataclass(frozen=True)
class AnswerForm:
    """How a model writes the parts of its answers.

    thinking  the marks around reasoning, which stands at the beginning
    calls     how calls stand in the text; None: they are not looked for
    channels  whether each part is a message in a channel, as gpt-oss writes them
    """

    thinking: tuple[str, str] | None = None
    calls: CallStyle | None = None
    channels: bool = False

    @property
    def marks(self) -> Iterator[str]:
        """All marks; a vocabulary may have a control token for each."""
        yield from self.thinking or ()
        if self.calls is not None:
            yield from filter(None, (*self.calls.around, self.calls.begin, *self.calls.inner, self.calls.end))


PLAIN: Final = AnswerForm()
_THINKING: Final = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))


def form_of(template: str, *, tools: bool) -> AnswerForm:
    """The form of answers to the prompts of a chat template, which shows the model how to answer."""
    if "<|channel|>" in template and "<|message|>" in template:
        return AnswerForm(calls=BARE if tools else None, channels=True)
    thinking = next((marks for marks in _THINKING if marks[1] in template), None)
    return AnswerForm(thinking, _style_of(template) if tools else None)


def _style_of(template: str) -> CallStyle:
    if HERMES.begin in template:
        return HERMES
    if _CALL in template:
        return DEEPSEEK_R1 if "```json" in template else DEEPSEEK
    if MISTRAL.begin in template:
        return MISTRAL if "[ARGS]" in template else OLD_MISTRAL
    return BARE
