"""How models write their answers: reasoning, text and calls of tools, as their chat templates show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, final

from .arguments import (
    ArgumentReader,
    JsonArgumentReader,
    LooseArgumentReader,
    ParameterTags,
    Schema,
    TaggedArgumentReader,
)

_NAME: Final = "NAME"


def _name_head(plain: str) -> re.Pattern[str]:
    """What stands before the first parameter of a call: the name, in group `plain`."""
    return re.compile(rf"{plain}(?P<json>(?!))?")


def _head(plain: str = "(?P<plain>(?!))") -> re.Pattern[str]:
    """What stands before a call's arguments: the name in a form of its own, or in JSON."""
    quoted = r'\[?\s*\{\s*"name"\s*:\s*(?P<json>"(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:'
    return re.compile(rf"\s*(?:{plain}|{quoted})\s*(?=\{{)")


@final
@dataclass(frozen=True)
class CallStyle:
    """How calls stand in a text."""

    begin: str  # the mark before each call; empty: the whole answer is the call, or several in a list
    end: str  # the mark after each call; empty: a call ends with its arguments
    opened: str  # what a model writes after `begin`, with NAME for the name, when it has to call
    closed: str  # what it writes after the arguments
    # what stands between `begin` and the arguments; its group `plain` or `json` is the name
    head: re.Pattern[str] = field(default_factory=_head)
    around: tuple[str, ...] = ()  # marks before the first call and after the last one, which say nothing
    joint: str = ""  # what a model writes between those and the marks of calls
    inner: tuple[str, ...] = ()  # marks inside of a call
    dropped: str = ""  # letters after a call that say nothing
    tags: ParameterTags | None = None  # how parameters stand between marks, if the arguments are not in JSON
    quote: str = ""  # the mark around texts, if the arguments are like JSON, but names have no quotes

    def arguments(self, schema: Schema) -> ArgumentReader:
        """What reads the arguments of a call; `schema` is that of the tool's arguments."""
        if self.tags is not None:
            return TaggedArgumentReader(self.tags, self.end, schema)
        return LooseArgumentReader(self.quote) if self.quote else JsonArgumentReader()

    def opening(self, name: str) -> str:
        """What stands between `begin` and the arguments of a tool's call."""
        quoted = json.dumps(name, ensure_ascii=False)
        shown = (f'"{_NAME}"', quoted) if '"' in self.opened else (_NAME, name)
        return self.opened.replace(*shown)


_LIST: Final = "}],; \n\t"
_OBJECT: Final = '{"name": "NAME", "arguments": '
HERMES: Final = CallStyle("<tool_call>", "</tool_call>", f"\n{_OBJECT}", "}\n</tool_call>")
BARE: Final = CallStyle(
    "", "", '{"name": "NAME", "parameters": ', "}", inner=("<|python_tag|>",), dropped=_LIST
)
_ARGS: Final = r"(?P<plain>[\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]"
MISTRAL: Final = CallStyle(
    "[TOOL_CALLS]", "", "NAME[ARGS]", "", _head(_ARGS), inner=("[ARGS]", "[CALL_ID]"), dropped=_LIST
)
OLD_MISTRAL: Final = CallStyle("[TOOL_CALLS]", "", f"[{_OBJECT}", "}]", dropped=_LIST)
FIREFUNCTION: Final = replace(OLD_MISTRAL, begin="functools[", opened=_OBJECT)
_MARKS: Final = ("call\u2581begin", "call\u2581end", "sep")
_CALL, _CALLED, _SEP = (f"<\uff5ctool\u2581{name}\uff5c>" for name in _MARKS)
_AROUND: Final = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
_DEEPSEEK_HEAD: Final = _head(
    rf"(?:function{_SEP})?(?P<plain>[^\s<\uff5c{{`]+)(?:{_SEP}|\s*```(?:json)?|(?=\s))"
)
DEEPSEEK: Final = CallStyle(
    _CALL, _CALLED, f"NAME{_SEP}", _CALLED, _DEEPSEEK_HEAD, around=_AROUND, inner=(_SEP,)
)
DEEPSEEK_R1: Final = replace(DEEPSEEK, opened=f"function{_SEP}NAME\n```json\n", closed=f"\n```{_CALLED}")
KIMI: Final = CallStyle(
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "functions.NAME:0<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    _head(r"(?P<id>(?:functions\.)?(?P<plain>[\w.\-]+?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>"),
    around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    inner=("<|tool_call_argument_begin|>",),
)
_GEMMA: Final = _head(r"call:(?P<plain>[\w.\-]+)")
GEMMA: Final = CallStyle(
    "<|tool_call>", "<tool_call|>", "call:NAME", "<tool_call|>", _GEMMA, inner=('<|"|>',), quote='<|"|>'
)
FUNCTION_GEMMA: Final = CallStyle(
    "<start_function_call>",
    "<end_function_call>",
    "call:NAME",
    "<end_function_call>",
    _GEMMA,
    inner=("<escape>",),
    quote="<escape>",
)
_QWEN: Final = ParameterTags(
    "<parameter=",
    re.compile(r"<parameter=(?P<key>[^>\n]+)>(?:\n|(?=[^\n]))"),
    "</parameter>",
    "<parameter=KEY>\n",
    "\n</parameter>\n",
)
QWEN: Final = CallStyle(
    "<function=",
    "</function>",
    "NAME>\n",
    "</function>",
    _name_head(r"(?P<plain>[^>\n]+)>"),
    around=("<tool_call>", "</tool_call>"),
    joint="\n",
    tags=_QWEN,
)
_GLM: Final = ParameterTags(
    "<arg_key>",
    re.compile(r"<arg_key>\s*(?P<key>[^<]*?)\s*</arg_key>\s*<arg_value>"),
    "</arg_value>",
    "<arg_key>KEY</arg_key>\n<arg_value>",
    "</arg_value>\n",
)
GLM: Final = CallStyle(
    "<tool_call>",
    "</tool_call>",
    "NAME\n",
    "</tool_call>",
    _name_head(r"\s*(?P<plain>[\w.\-/:]+)\s*(?=<)"),
    inner=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    tags=_GLM,
)
_DSML: Final = "\uff5cDSML\uff5c"
_DSML_TAGS: Final = ParameterTags(
    f"<{_DSML}parameter",
    re.compile(rf'<{_DSML}parameter\s+name="(?P<key>[^"]*)"(?:\s+string="(?P<text>true|false)")?\s*>'),
    f"</{_DSML}parameter>",
    f'<{_DSML}parameter name="KEY" string="TEXT">',
    f"</{_DSML}parameter>\n",
)


def _dsml(block: str) -> CallStyle:
    """The style of DeepSeek V3.2 and later; `block` names what is around the calls."""
    return CallStyle(
        f"<{_DSML}invoke",
        f"</{_DSML}invoke>",
        ' name="NAME">\n',
        f"</{_DSML}invoke>",
        _name_head(r'\s+name="(?P<plain>[^"]*)"\s*>'),
        around=(f"<{_DSML}{block}>", f"</{_DSML}{block}>"),
        joint="\n",
        inner=(_DSML,),
        tags=_DSML_TAGS,
    )


DSML: Final = _dsml("function_calls")
DSML_4: Final = _dsml("tool_calls")


def style_of(template: str) -> CallStyle:
    """The style of calls that a chat template shows."""
    return next((style for shown, style in _SHOWN if all(text in template for text in shown)), BARE)


_SHOWN: Final[tuple[tuple[tuple[str, ...], CallStyle], ...]] = (
    (("<function=", "<parameter="), QWEN),
    (("<arg_key>", "<arg_value>"), GLM),
    ((_DSML, f"<{_DSML}tool_calls"), DSML_4),
    ((_DSML,), DSML),
    ((KIMI.begin,), KIMI),
    ((GEMMA.begin, GEMMA.quote), GEMMA),
    ((FUNCTION_GEMMA.begin,), FUNCTION_GEMMA),
    ((HERMES.begin,), HERMES),
    ((_CALL, "```json"), DEEPSEEK_R1),
    ((_CALL,), DEEPSEEK),
    ((MISTRAL.begin, "[ARGS]"), MISTRAL),
    ((OLD_MISTRAL.begin,), OLD_MISTRAL),
    ((FIREFUNCTION.begin,), FIREFUNCTION),
)


# -- whole answers ---------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class AnswerForm:
    """How a model writes the parts of its answers."""

    thinking: tuple[str, str] | None = None  # the marks around reasoning, which stands at the beginning
    calls: CallStyle | None = None  # how calls stand in the text; None: they are not looked for
    channels: bool = False  # whether each part is a message in a channel, as gpt-oss writes them

    @property
    def marks(self) -> Iterator[str]:
        """All marks; a vocabulary may have a control token for each."""
        for mark in self.thinking or ():
            yield from _TOKENS.findall(mark)
        if self.calls is not None:
            yield from filter(None, (*self.calls.around, self.calls.begin, *self.calls.inner, self.calls.end))


_TOKENS: Final = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")  # in a mark; text may follow
_THINKING: Final = (("[THINK]", "[/THINK]"), ("<think>", "</think>"), ("<|channel>thought\n", "<channel|>"))


def form_of(template: str, *, tools: bool) -> AnswerForm:
    """The form of answers to the prompts of a chat template, which shows the model how to answer."""
    if "<|channel|>" in template and "<|message|>" in template:
        return AnswerForm(calls=BARE if tools else None, channels=True)
    thinking = next((marks for marks in _THINKING if marks[1] in template), None)
    return AnswerForm(thinking, style_of(template) if tools else None)
