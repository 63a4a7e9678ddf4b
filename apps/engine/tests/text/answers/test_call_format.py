"""Grammars of answers that call tools: which answers they allow."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from backbay_engine import Tools
from backbay_engine.errors import ResponseFormatError, ToolsError
from backbay_engine.text.answers import AnswerForm, AnswerRule, call_format, form_of
from backbay_engine.text.formats import ResponseFormat, format_rule, response_format_of

llguidance = pytest.importorskip("llguidance")
CITY = {"type": "object", "properties": {"city": {"enum": ['K"\u00f6}', "a/b\n"]}}, "required": ["city"]}
NAMES = ("f", "foo", 'q"x/')
DEFINITIONS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in NAMES]
GOOD, BAD = json.dumps({"city": 'K"\u00f6}'}, ensure_ascii=False), '{"city": 5}'
CALLS, CALL, SEP, CALLED, OVER = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)
DSML = "\uff5cDSML\uff5c"
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def bare(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "parameters": {arguments}}}'


def mistral(name: str, arguments: str) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{arguments}"


def old_mistral(name: str, arguments: str) -> str:
    return f'[TOOL_CALLS][{{"name": {json.dumps(name)}, "arguments": {arguments}}}]'


def firefunction(name: str, arguments: str) -> str:
    return f'functools[{{"name": {json.dumps(name)}, "arguments": {arguments}}}]'


def deepseek(name: str, arguments: str) -> str:
    return f"{CALLS}{CALL}{name}{SEP}{arguments}{CALLED}{OVER}"


def deepseek_r1(name: str, arguments: str) -> str:
    return f"{CALLS}{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALLED}{OVER}"


def channel(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def role(name: str, arguments: str) -> str:
    return f" to=functions.{name}<|channel|>commentary json<|message|>{arguments}"


def pieces_of(arguments: str) -> dict[str, str]:
    """Arguments as parameters: texts as they are, other values in JSON; what is no object is a parameter of no name."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return {"": arguments}
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def qwen(name: str, arguments: str) -> str:
    given = "".join(
        f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in pieces_of(arguments).items()
    )
    return f"<tool_call>\n<function={name}>\n{given}</function>\n</tool_call>"


def glm(name: str, arguments: str) -> str:
    given = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n"
        for key, text in pieces_of(arguments).items()
    )
    return f"<tool_call>{name}\n{given}</tool_call>"


def dsml(name: str, arguments: str) -> str:
    given = "".join(
        f'<{DSML}parameter name="{key}" string="true">{text}</{DSML}parameter>\n'
        for key, text in pieces_of(arguments).items()
    )
    calls = f"<{DSML}invoke name={json.dumps(name)}>\n{given}</{DSML}invoke>"
    return f"<{DSML}function_calls>\n{calls}\n</{DSML}function_calls>"


def kimi(name: str, arguments: str) -> str:
    call = f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


class Case(NamedTuple):
    """A template, how it writes a call, and answers besides."""

    template: str
    call: Any
    free: Sequence[str] = ()
    control: Sequence[str] = ()


CASES: Mapping[str, Case] = {
    "Hermes": Case("<tool_call></think>", hermes, ["", "<think>Hm</think>Yes", "<b>"]),
    "Hermes, control": Case("<tool_call>", hermes, ["Yes"], ("<tool_call>", "</tool_call>")),
    "Llama": Case("", bare, ["Yes", '{"answer": 1}', "<think>Hm</think>"], ("<|python_tag|>",)),
    "bare": Case("</think>", bare, ["<think>Hm</think>Yes"]),
    "Mistral": Case(
        "[TOOL_CALLS][ARGS][/THINK]",
        mistral,
        ["[THINK]Hm[/THINK]Yes"],
        ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
    ),
    "Mistral in text": Case("[TOOL_CALLS][ARGS]", mistral, ["Yes"]),
    "Mistral, a list": Case("[TOOL_CALLS]", old_mistral, ["Yes"], ("[TOOL_CALLS]",)),
    "Firefunction": Case("functools[", firefunction, ["Yes"]),
    "DeepSeek": Case(CALL, deepseek, ["Yes"]),
    "DeepSeek, control": Case(CALL, deepseek, ["Yes"], (CALLS, CALL, SEP, CALLED, OVER)),
    "DeepSeek R1": Case(f"{CALL}```json</think>", deepseek_r1, ["<think>Hm</think>Yes"]),
    "Qwen 3 Coder": Case("<tool_call><function=<parameter=</think>", qwen, ["<think>Hm</think>Yes", "<b>"]),
    "Qwen 3 Coder, control": Case(
        "<function=<parameter=", qwen, ["Yes", "<"], ("<tool_call>", "</tool_call>")
    ),
    "GLM": Case("<arg_key><arg_value></think>", glm, ["<think>Hm</think>Yes", ""]),
    "GLM, control": Case(
        "<arg_key><arg_value>",
        glm,
        ["Yes"],
        ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    ),
    "DeepSeek V3.2": Case(DSML, dsml, ["Yes", "<b>"]),
    "DeepSeek V3.2, control": Case(DSML, dsml, ["Yes", "<b>"], (DSML,)),
    "Kimi": Case("<|tool_call_begin|>", kimi, ["Yes"]),
    "channels": Case(
        "<|channel|><|message|>",
        channel,
        [f"{THOUGHT}<|channel|>final<|message|>Yes", role("f", GOOD), THOUGHT + role("foo", GOOD)],
    ),
}


class Vocabulary:
    """Bytes and control tokens, for llguidance and for call_format."""

    bos_token_id = None

    def __init__(self, control: Sequence[str]) -> None:
        self._ids = {text: 256 + place for place, text in enumerate(control)}
        self.tokens = [
            *(bytes((byte,)) for byte in range(256)),
            *(text.encode() for text in control),
            b"</s>",
        ]
        self.control_ids, self.eos_token_id = frozenset(self._ids.values()), len(self.tokens) - 1
        self.special_token_ids = [*self._ids.values(), self.eos_token_id]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)

    def encoded(self, text: str) -> list[int]:
        found, rest = list[int](), text
        while rest:
            mark = next((mark for mark in self._ids if rest.startswith(mark)), "")
            found += [self._ids[mark]] if mark else rest[0].encode()
            rest = rest[len(mark) or 1 :]
        return found


def allows(format: Mapping[str, Any], vocabulary: Vocabulary, text: str) -> bool:
    """Whether a text can be an answer."""
    tokenizer = llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(vocabulary),
        n_vocab=len(vocabulary.tokens),
        eos_token=vocabulary.eos_token_id,
    )
    matcher = llguidance.LLMatcher(
        tokenizer, llguidance.LLMatcher.grammar_from_lark(format["grammar"]), log_level=0
    )
    assert not matcher.is_error(), matcher.get_error()
    for token in vocabulary.encoded(text):
        mask = matcher.compute_bitmask()
        if not mask[token // 8] >> (token % 8) & 1:
            return False
        matcher.consume_token(token)
    return matcher.is_accepting()


def format_of(
    case: Case,
    *,
    forced: bool,
    strict: Sequence[str] = NAMES,
    inside: bool = False,
    definitions: Sequence[Mapping[str, Any]] = DEFINITIONS,
    wanted: Any = None,
    parallel: bool = True,
) -> tuple[Mapping[str, Any], Vocabulary]:
    form: AnswerForm = form_of(case.template, tools=True)
    vocabulary = Vocabulary(case.control)
    tools, given = Tools(definitions, frozenset(strict), forced, parallel), response_format_of(wanted)
    answer = None if given is None else AnswerRule(format_rule(given), given.kind == "schema")
    return call_format(form, tools, vocabulary, inside=inside, answer=answer), vocabulary  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_text_is_free_and_strict_calls_are_not(name: str) -> None:
    case = CASES[name]
    found = format_of(case, forced=False)
    for text in (*case.free, *(case.call(each, GOOD) for each in NAMES)):
        assert allows(*found, text), text
    for text in (case.call("f", BAD), case.call("foo", BAD), case.call("g", GOOD), case.call("f", "")):
        assert not allows(*found, text), text


@pytest.mark.parametrize("name", CASES)
def test_a_forced_answer_is_a_call(name: str) -> None:
    case = CASES[name]
    found = format_of(case, forced=True, strict=())
    for each in NAMES:
        assert allows(*found, case.call(each, GOOD))
    for text in (*case.free, case.call("f", BAD), case.call("g", GOOD), "Yes"):
        assert not allows(*found, text), text


TAGGED = {"Qwen 3 Coder": qwen, "GLM, control": glm, "DeepSeek V3.2, control": dsml}
MIXED: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "any"},
        "count": {"type": "integer"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/one"}},
    },
    "required": ["text"],
    "$defs": {"one": {"type": "boolean"}},
}


@pytest.mark.parametrize("name", TAGGED)
def test_parameters_between_marks_obey(name: str) -> None:
    call, tools = TAGGED[name], [{"type": "function", "function": {"name": "f", "parameters": MIXED}}]
    found = format_of(CASES[name], forced=True, definitions=tools)
    text = "</b> \n<x"
    assert allows(*found, call("f", json.dumps({"text": text})))
    numbers = call("f", json.dumps({"text": text, "count": 5, "list": [True]}))
    numbers = numbers.replace('name="count" string="true"', 'name="count" string="false"')
    assert allows(*found, numbers.replace('name="list" string="true"', 'name="list" string="false"'))
    for wrong in (
        {},
        {"count": 5},
        {"text": "", "count": "a"},
        {"text": "", "list": [1]},
        {"text": "", "b": 1},
    ):
        assert not allows(*found, call("f", json.dumps(wrong))), wrong


@pytest.mark.parametrize("name", TAGGED)
def test_tools_that_are_free_take_any_parameters(name: str) -> None:
    found = format_of(CASES[name], forced=False, strict=["foo"])
    assert allows(*found, TAGGED[name]("f", json.dumps({"any": "x", "other": "y"})))
    assert not allows(*found, TAGGED[name]("foo", json.dumps({"any": "x"})))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "not": {}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "a+"}}},
    ],
)
def test_what_marks_around_parameters_cannot_demand_is_refused(schema: Mapping[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(ToolsError, match=r"(not|pattern) cannot be demanded"):
        format_of(CASES["GLM"], forced=True, definitions=tools)


@pytest.mark.parametrize(
    "wrong", [{"properties": {"a": True}}, {"properties": ["a"]}, {"properties": {"a": {}}, "required": "a"}]
)
def test_a_schema_that_is_none_is_refused(wrong: Mapping[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", **wrong}}}]
    with pytest.raises(ToolsError, match="cannot be demanded"):
        format_of(CASES["GLM"], forced=True, definitions=tools)


def test_properties_and_required_names_may_be_null() -> None:
    none = {"type": "object", "properties": None, "required": None, "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "f", "parameters": none}}]
    assert allows(*format_of(CASES["GLM"], forced=True, definitions=tools), glm("f", "{}"))


def test_what_is_no_json_cannot_be_demanded_of_gemma() -> None:
    with pytest.raises(ToolsError, match="arguments cannot be demanded"):
        format_of(Case('<|tool_call><|"|>', None), forced=True)


def test_calls_stand_side_by_side_and_in_text() -> None:
    found = format_of(CASES["Hermes"], forced=False)
    assert allows(*found, f"So: {hermes('f', GOOD)}\n{hermes('foo', GOOD)} done")
    assert not allows(*found, f"So: {hermes('f', GOOD)}\n{hermes('foo', BAD)} done")


def test_tools_that_are_not_strict_take_any_arguments() -> None:
    found = format_of(CASES["Hermes"], forced=False, strict=["foo"])
    assert allows(*found, hermes("f", BAD))
    assert not allows(*found, hermes("foo", BAD))


def test_bare_calls_obey_after_reasoning() -> None:
    found = format_of(CASES["bare"], forced=False)
    assert allows(*found, f"<think>Hm</think>\n{bare('f', GOOD)}")
    assert not allows(*found, f"<think>Hm</think>\n{bare('f', BAD)}")
    found = format_of(CASES["bare"], forced=False, inside=True)
    assert allows(*found, f"Hm</think>\n\n{bare('f', GOOD)}")
    assert allows(*found, "Hm</think>Yes")
    assert not allows(*found, f"Hm</think>{bare('f', BAD)}")


def test_a_call_after_the_mark_of_a_control_token_obeys() -> None:
    found = format_of(CASES["Llama"], forced=False)
    assert allows(*found, f"<|python_tag|>{bare('f', GOOD)}")
    assert not allows(*found, f"<|python_tag|>{bare('f', BAD)}")


# -- calls, or an answer in a format -----------------------------------------------------------------------

ANSWER = '{"age": 42}'
WANTED: Mapping[str, Any] = {
    "schema": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
                "required": ["age"],
                "additionalProperties": False,
            }
        },
    },
    "regex": re.compile(r'\{"age": [0-9]+\}|[^\d<]/'),
    "choice": [ANSWER, "maybe"],
    "grammar": r'root ::= "{\"age\": " [0-9]+ "}"',
}


@pytest.mark.parametrize("kind", WANTED)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(30)
def test_an_answer_is_calls_or_in_the_format(name: str, kind: str) -> None:
    case, final = CASES[name], "<|channel|>final<|message|>" if name == "channels" else ""
    found = format_of(case, forced=False, strict=["f"], wanted=WANTED[kind])
    for text in (final + ANSWER, case.call("f", GOOD), case.call("foo", GOOD), case.call('q"x/', BAD)):
        assert allows(*found, text), text
    for text in ("Yes", "", *case.free, case.call("f", BAD), case.call("g", GOOD), final + "{}"):
        assert not allows(*found, text), text


def test_an_answer_in_json_may_begin_like_a_call() -> None:
    found = format_of(CASES["Llama"], forced=False, wanted=WANTED["schema"])
    for text in ('{"name": "f", "age": 42}', '{"name":"foo","age":42}', bare("f", GOOD)):
        assert allows(*found, text), text
    assert not allows(*found, '{"name": "f", "city": 42}')


def test_further_calls_may_follow_unless_one_is_wanted() -> None:
    for parallel in (True, False):
        found = format_of(CASES["Hermes"], forced=False, wanted=["Yes"], parallel=parallel)
        assert allows(*found, f"{hermes('f', GOOD)}\n{hermes('foo', GOOD)}") == parallel
        assert not allows(*found, f"{hermes('f', GOOD)}\nYes")


def test_a_demanded_call_is_no_answer_in_the_format() -> None:
    found = format_of(CASES["Hermes"], forced=True, wanted=["Yes"])
    assert allows(*found, hermes("f", GOOD))
    assert not allows(*found, "Yes")


def test_calls_of_gemma_are_loose_beside_a_format() -> None:
    marks = ("<|tool_call>", '<|"|>', "<tool_call|>")
    case = Case("".join(marks), None, control=marks)
    found = format_of(case, forced=False, strict=(), wanted=["Yes"])
    assert allows(*found, '<|tool_call>call:f{city:<|"|>a{"<|"|>,n:3}<tool_call|>')
    assert allows(*found, "Yes")
    assert not allows(*found, '<|tool_call>call:g{city:<|"|>a<|"|>}<tool_call|>')
    with pytest.raises(ToolsError, match="arguments cannot be demanded"):
        format_of(case, forced=False, wanted=["Yes"])


def test_a_format_that_is_no_grammar_is_refused() -> None:
    with pytest.raises(ResponseFormatError):
        format_of(CASES["Hermes"], forced=False, wanted='root ::= "a')


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("a/b", r"/a\/b/"),
        (r"a\/b", r"/a\/b/"),
        ("a\nb", r"/a\nb/"),
        ("a\\\nb", r"/a\nb/"),
        (r"a\\/", r"/a\\\//"),
    ],
)
def test_a_regex_stands_between_slashes(given: str, rule: str) -> None:
    assert format_rule(ResponseFormat("regex", given)) == rule


def test_guidance_that_is_none_is_left_out() -> None:
    rule = format_rule(ResponseFormat("schema", '{"type": "object", "x-guidance": 5}'))
    assert list(json.loads(rule.removeprefix("%json "))["x-guidance"]) == ["whitespace_pattern"]
