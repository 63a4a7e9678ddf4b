"""The parts of answers: the same, however the text is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import SCRIPTS

from backbay_engine.text.answers import (
    AnswerForm,
    CallArguments,
    CallBegun,
    Reasoning,
    Text,
    form_of,
    reader_of,
)

MARKED = form_of("{{ '<tool_call>' }} </think>", tools=True)
BARE = form_of("{{ tools }} </think>", tools=True)
CHANNELS = form_of("<|start|><|channel|><|message|>", tools=True)
MISTRAL = form_of("[TOOL_CALLS] [ARGS] [/THINK]", tools=True)
OLD_MISTRAL = form_of("[TOOL_CALLS]", tools=True)
FIREFUNCTION = form_of("functools[", tools=True)
CALL = "<\uff5ctool\u2581call\u2581begin\uff5c>"
SEP, CALLED = "<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
CALLS, OVER = "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
DEEPSEEK = form_of(f"{CALL} </think>", tools=True)
WEATHER = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "a } \\" b", "days": [1, {}]}}\n</tool_call>'
)
ARGUMENTS = {"city": 'a } " b', "days": [1, {}]}
QWEN = form_of("<tool_call><function=<parameter=</think>", tools=True)
GLM = form_of("<tool_call><arg_key><arg_value></think>", tools=True)
DSML = "\uff5cDSML\uff5c"
DEEPSEEK_V3_2 = form_of(f"<{DSML}function_calls></think>", tools=True)
DEEPSEEK_V4 = form_of(f"<{DSML}tool_calls></think>", tools=True)
KIMI = form_of("<|tool_call_begin|></think>", tools=True)
GEMMA = form_of('<|tool_call><|"|><|channel>thought\n<channel|>', tools=True)
FUNCTION_GEMMA = form_of("<start_function_call>", tools=True)
NEW = [QWEN, GLM, DEEPSEEK_V3_2, DEEPSEEK_V4, KIMI, GEMMA, FUNCTION_GEMMA]
SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["5", "6"]},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "days": {"type": ["integer", "string"]},
            "hot": {"type": "boolean"},
            "list": {"type": "array"},
        },
    }
}


def parts(form: AnswerForm, pieces: list[str], *, inside: bool = False) -> list[tuple[str, object]]:
    """Reasoning, text and calls, joined."""
    parser = reader_of(form, inside=inside, schemas=SCHEMAS)
    found: list[list[str]] = []
    for given_piece in [*(each for piece in pieces for each in parser.push(piece)), *parser.finish()]:
        match given_piece:
            case CallBegun(number, id, name):
                assert len(id) == 9 or id.startswith("functions.")
                assert number == sum(kind == f"call {name}" or kind.startswith("call") for kind, _ in found)
                found.append([f"call {name}", ""])
            case CallArguments(_, text):
                found[-1][1] += text
            case Text(text) | Reasoning(text):
                kind = type(given_piece).__name__.lower()
                if not found or found[-1][0] != kind:
                    found.append([kind, ""])
                found[-1][1] += text
    return [(kind, json.loads(text) if kind.startswith("call") else text) for kind, text in found]


CASES = {
    "plain": (MARKED, "a <tool", [("text", "a <tool")]),
    "reasoning": (MARKED, "<think>\nHm</think>\n\nYes", [("reasoning", "\nHm"), ("text", "Yes")]),
    "one call": (MARKED, WEATHER, [("call weather", ARGUMENTS)]),
    "text and calls": (
        MARKED,
        f"So: \n{WEATHER}\n{WEATHER}\n",
        [("text", "So:"), ("call weather", ARGUMENTS), ("call weather", ARGUMENTS)],
    ),
    "text after a call": (MARKED, f"{WEATHER}\ndone", [("call weather", ARGUMENTS), ("text", "done")]),
    "without an end": (MARKED, WEATHER.removesuffix("\n</tool_call>"), [("call weather", ARGUMENTS)]),
    "arguments first": (
        MARKED,
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        [("call f", {"a": 1})],
    ),
    "arguments in a string": (
        MARKED,
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [("call f", {"a": 1})],
    ),
    "no arguments": (MARKED, '<tool_call>{"name": "f"}</tool_call>', [("call f", {})]),
    "no JSON": (MARKED, "<tool_call>f(1)</tool_call>.", [("text", "<tool_call>f(1)</tool_call>.")]),
    "no name": (MARKED, "<tool_call>{}</tool_call>", [("text", "<tool_call>{}</tool_call>")]),
    "bare": (BARE, '{"name": "f", "parameters": {"a": 1}}', [("call f", {"a": 1})]),
    "a bare list": (
        BARE,
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]',
        [("call f", {}), ("call g", {})],
    ),
    "bare, wrapped": (
        BARE,
        '<think>x</think>{"type": "function", "function": {"name": "f", "parameters": {}}}',
        [("reasoning", "x"), ("call f", {})],
    ),
    "other JSON": (BARE, '{"answer": 42}', [("text", '{"answer": 42}')]),
    "JSON without an end": (BARE, '{"name": "f", "par', [("text", '{"name": "f", "par')]),
    "text in a bare form": (BARE, " yes", [("text", " yes")]),
    "bare, one after the other": (
        BARE,
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": 1}, "id": "x"}\n',
        [("call f", {}), ("call g", {"a": 1})],
    ),
    "the end of a mark in an argument": (
        MARKED,
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        [("call f", {"a": "</tool_call>"})],
    ),
    "Mistral": (
        MISTRAL,
        'Look: [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}',
        [("text", "Look:"), ("call f", {"a": 1}), ("call g", {})],
    ),
    "Mistral's reasoning": (MISTRAL, "[THINK]Hm[/THINK]Yes", [("reasoning", "Hm"), ("text", "Yes")]),
    "Mistral, a list": (
        OLD_MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}, "id": "123456789"}, {"name": "g", "arguments": {}}]',
        [("call f", {"a": [1]}), ("call g", {})],
    ),
    "Firefunction": (
        FIREFUNCTION,
        ' functools[{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": {}}]',
        [("call f", {"a": [1]}), ("call g", {})],
    ),
    "Firefunction, Python": (
        FIREFUNCTION,
        "import functools\nfunctools.reduce(f, [1])",
        [("text", "import functools\nfunctools.reduce(f, [1])")],
    ),
    "Mistral, no call": (MISTRAL, "[TOOL_CALLS] or not", [("text", "[TOOL_CALLS] or not")]),
    "DeepSeek V3.1": (
        DEEPSEEK,
        f'Let me see.{CALLS}{CALL}f{SEP}{{"a": 1}}{CALLED}{CALL}g{SEP}{{}}{CALLED}{OVER}',
        [("text", "Let me see."), ("call f", {"a": 1}), ("call g", {})],
    ),
    "DeepSeek R1": (
        DEEPSEEK,
        (
            f'<think>Hm</think>{CALLS}{CALL}function{SEP}f\n```json\n{{"a": "```"}}\n```{CALLED}\n'
            f"{CALL}function{SEP}g\n```json\n{{}}\n```{CALLED}{OVER}"
        ),
        [("reasoning", "Hm"), ("call f", {"a": "```"}), ("call g", {})],
    ),
    "DeepSeek, no call": (DEEPSEEK, f"{CALL}f{CALLED}.", [("text", f"{CALL}f{CALLED}.")]),
    "channels": (
        CHANNELS,
        "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Yes",
        [("reasoning", "Hm"), ("text", "Yes")],
    ),
    "a call in the header of its channel": (
        CHANNELS,
        (
            "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
            '<|constrain|>json<|message|>{"a": 1}'
        ),
        [("reasoning", "Hm"), ("call f", {"a": 1})],
    ),
    "a call in the header of its role": (
        CHANNELS,
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json"
            '<|message|>{"a": "<b>"}<|call|>'
        ),
        [("text", "I look."), ("call f", {"a": "<b>"})],
    ),
    "a call to itself is none": (
        CHANNELS,
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm<|end|>",
        [("reasoning", "Hm")],
    ),
    "a call without arguments in a channel": (
        CHANNELS,
        " to=functions.f<|channel|>analysis<|message|>",
        [("call f", {})],
    ),
    "Qwen 3 Coder": (
        QWEN,
        (
            '<think>Hm</think>Look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\n a </b>\n"x\n\n</parameter>\n'
            "<parameter=days>\n5\n</parameter>\n<parameter=hot>\nTrue\n</parameter>\n<parameter=unit>\n5\n"
            "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>"
        ),
        [
            ("reasoning", "Hm"),
            ("text", "Look."),
            ("call weather", {"city": ' a </b>\n"x\n', "days": 5, "hot": True, "unit": "5"}),
            ("call g", {}),
        ],
    ),
    "Qwen 3 Coder, without the first mark, and with unknown parameters": (
        QWEN,
        "<function=f><parameter=a>7</parameter><parameter=b>\nx y\n</parameter></function></tool_call>.",
        [("call f", {"a": 7, "b": "x y"}), ("text", ".")],
    ),
    "Qwen 3 Coder, no call": (QWEN, "<function=\n</function>", [("text", "<function=\n</function>")]),
    "texts that may be null": (
        QWEN,
        (
            "<tool_call><function=weather><parameter=note>\n5\n</parameter></function></tool_call>"
            "<tool_call><function=weather><parameter=note>\nNone\n</parameter></function></tool_call>"
        ),
        [("call weather", {"note": "5"}), ("call weather", {"note": None})],
    ),
    "GLM 4.5": (
        GLM,
        (
            "<think>Hm</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>K\u00f6ln\n</arg_value>\n"
            '<arg_key>list</arg_key>\n<arg_value>["a", {"b": 1}]</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>'
        ),
        [
            ("reasoning", "Hm"),
            ("call weather", {"city": "K\u00f6ln\n", "list": ["a", {"b": 1}]}),
            ("call g", {}),
        ],
    ),
    "GLM 4.7": (
        GLM,
        "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value><arg_key>b</arg_key><arg_value>1</arg_value></tool_call>",
        [("call f", {"a": "x", "b": 1})],
    ),
    "GLM, no call": (GLM, "<tool_call>f(1)</tool_call>.", [("text", "<tool_call>f(1)</tool_call>.")]),
    "DeepSeek V3.2": (
        DEEPSEEK_V3_2,
        (
            f'Look.\n\n<{DSML}function_calls>\n<{DSML}invoke name="weather">\n<{DSML}parameter name="city" string="true">'
            f'5\n</{DSML}parameter>\n<{DSML}parameter name="days" string="false">5</{DSML}parameter>\n</{DSML}invoke>\n'
            f'<{DSML}invoke name="g">\n</{DSML}invoke>\n</{DSML}function_calls>'
        ),
        [("text", "Look."), ("call weather", {"city": "5\n", "days": 5}), ("call g", {})],
    ),
    "DeepSeek V4, in JSON": (
        DEEPSEEK_V4,
        f'<{DSML}tool_calls>\n<{DSML}invoke name="f">\n{{"a": "}}"}}\n</{DSML}invoke>\n</{DSML}tool_calls>',
        [("call f", {"a": "}"})],
    ),
    "Kimi": (
        KIMI,
        (
            "<think>Hm</think>Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>'
            "<|tool_calls_section_end|>"
        ),
        [("reasoning", "Hm"), ("text", "Look."), ("call f", {"a": 1}), ("call g", {})],
    ),
    "Gemma 4": (
        GEMMA,
        (
            '<|channel>thought\nHm<channel|><|tool_call>call:f{a:<|"|>x: "y"}\n<|"|>,b:[1,true,<|"|>z<|"|>,{c:null}],'
            'd:{},"e":-2.5,t:12:30}<tool_call|><|tool_call>call:g{}<tool_call|>'
        ),
        [
            ("reasoning", "Hm"),
            (
                "call f",
                {"a": 'x: "y"}\n', "b": [1, True, "z", {"c": None}], "d": {}, "e": -2.5, "t": "12:30"},
            ),
            ("call g", {}),
        ],
    ),
    "FunctionGemma": (
        FUNCTION_GEMMA,
        "<start_function_call>call:f{a:<escape>x<escape>,b:word}<end_function_call>",
        [("call f", {"a": "x", "b": "word"})],
    ),
    "a name that is no JSON": (
        MARKED,
        r'<tool_call>{"name": "\x", "arguments": {}}</tool_call>',
        [("text", r'<tool_call>{"name": "\x", "arguments": {}}</tool_call>')],
    ),
    "a name that is no text": (
        MARKED,
        r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>',
        [("text", r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>')],
    ),
    "a bare name that is no text": (BARE, r'{"name": "\ud800"}', [("text", r'{"name": "\ud800"}')]),
    "DeepSeek V3.2, no name": (
        DEEPSEEK_V3_2,
        f'<{DSML}invoke name="">\n</{DSML}invoke>',
        [("text", f'<{DSML}invoke name="">\n</{DSML}invoke>')],
    ),
    "Gemma, no call": (GEMMA, "<|tool_call>f<tool_call|>", [("text", "<|tool_call>f<tool_call|>")]),
    "text without a channel": (CHANNELS, "to be, or <|not|>", [("text", "to be, or <|not|>")]),
    "a channel that ends in its header": (CHANNELS, "<|channel|>fin", []),
    "a text that may begin a header": (CHANNELS, "to", [("text", "to")]),
}


@pytest.mark.parametrize("name", CASES)
def test_parts_do_not_depend_on_how_a_text_is_cut(name: str) -> None:
    form, text, expected = CASES[name]
    assert parts(form, list(text)) == expected
    for cut in range(len(text)):
        assert parts(form, [text[:cut], text[cut:]]) == expected


GROWING = {
    "Hermes": (MARKED, '<tool_call>{"name": "f", "arguments": {"a"', "}</tool_call>"),
    "bare": (BARE, '{"name": "f", "parameters": {"a"', "}"),
    "Mistral": (MISTRAL, '[TOOL_CALLS]f[ARGS]{"a"', ""),
    "DeepSeek": (DEEPSEEK, f'{CALLS}{CALL}f{SEP}{{"a"', f"{CALLED}{OVER}"),
    "channels": (CHANNELS, '<|channel|>commentary to=functions.f json<|message|>{"a"', ""),
}


@pytest.mark.parametrize("name", GROWING)
def test_arguments_are_passed_on_as_they_grow(name: str) -> None:
    form, begin, end = GROWING[name]
    parser = reader_of(form)
    assert parser.push(begin)[1:] == [CallArguments(0, '{"a"')]
    assert parser.push(": [1") == [CallArguments(0, ": [1")]
    assert parser.push("]}" + end) == [CallArguments(0, "]}")]
    assert not parser.finish()
    assert parser.calls == 1


GROWING_TEXTS = {
    "Qwen 3 Coder": (QWEN, "<function=weather>\n<parameter=city>\n", "</parameter>", "</function>"),
    "GLM": (
        GLM,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>",
        "</arg_value>",
        "</tool_call>",
    ),
    "DeepSeek V3.2": (
        DEEPSEEK_V3_2,
        f'<{DSML}invoke name="weather">\n<{DSML}parameter name="city" string="true">',
        f"</{DSML}parameter>",
        f"</{DSML}invoke>",
    ),
    "Gemma": (GEMMA, '<|tool_call>call:weather{city:<|"|>', '<|"|>', "}<tool_call|>"),
}


@pytest.mark.parametrize("name", GROWING_TEXTS)
def test_texts_without_quotes_are_passed_on_as_they_grow(name: str) -> None:
    form, begin, close, end = GROWING_TEXTS[name]
    parser = reader_of(form, schemas=SCHEMAS)
    given = [*parser.push(begin), *parser.push('a"')]
    assert "".join(piece.text for piece in given[1:]) == '{"city": "a\\"'.replace(
        ": ", ":" if name == "Gemma" else ": "
    )
    assert parser.push("b ") == [CallArguments(0, "b ")]
    assert parser.push(close) == [CallArguments(0, '"')]
    assert parser.push(end) == [CallArguments(0, "}")]
    assert not parser.finish()


def test_a_call_has_the_id_that_its_model_gives_it() -> None:
    reader = reader_of(KIMI)
    [begun, *_] = reader.push("<|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>{}")
    assert begun == CallBegun(0, "functions.f:3", "f")


@pytest.mark.parametrize("form", [QWEN, GLM, DEEPSEEK_V3_2, GEMMA])
def test_arguments_that_the_answers_end_has_cut_are_no_whole_json(form: AnswerForm) -> None:
    begin = next(begin for each, begin, *_ in GROWING_TEXTS.values() if each == form)
    reader = reader_of(form, schemas=SCHEMAS)
    pieces = [*reader.push(f"{begin}Oslo"), *reader.finish()]
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads("".join(piece.text for piece in pieces if isinstance(piece, CallArguments)))


def test_a_prompt_may_have_begun_the_reasoning() -> None:
    assert parts(MARKED, ["Hm</th", "ink> Yes"], inside=True) == [("reasoning", "Hm"), ("text", "Yes")]
    assert parts(MARKED, ["Hm</th"], inside=True) == [("reasoning", "Hm</th")]


def test_the_marks_of_a_form_are_those_that_may_be_control_tokens() -> None:
    assert [*GEMMA.marks] == ["<|channel>", "<channel|>", "<|tool_call>", '<|"|>', "<tool_call|>"]
    assert [*MISTRAL.marks][:2] == ["[THINK]", "[/THINK]"]


def test_a_template_shows_the_form() -> None:
    assert form_of("{{ '<tool_call>' }} </think>", tools=False) == AnswerForm(("<think>", "</think>"))
    assert form_of("{{ tools }}", tools=False) == AnswerForm()
    forms = [MARKED, BARE, CHANNELS, MISTRAL, OLD_MISTRAL, FIREFUNCTION, DEEPSEEK, *NEW]
    assert len(set(forms)) == len(forms)


def test_without_tools_calls_are_text() -> None:
    text = '<|channel|>commentary to=functions.f json<|message|>{"a": 1}'
    assert parts(form_of("<|channel|><|message|>", tools=False), [text]) == [("text", '{"a": 1}')]


def test_without_parallel_calls_there_is_the_first_one() -> None:
    reader = reader_of(MARKED, parallel=False)
    found = [*reader.push(f"{WEATHER}{WEATHER}"), *reader.finish()]
    assert sum(isinstance(piece, CallBegun) for piece in found) == reader.calls == 1


@pytest.mark.parametrize("name", ["weather", "both", "talk_and_call"])
def test_calls_of_the_scripted_model_are_found(name: str) -> None:
    steps = [step for step in SCRIPTS[name].steps if isinstance(step, str)]
    assert [kind for kind, _ in parts(MARKED, steps) if kind != "text"] == {
        "weather": ["call get_weather"],
        "both": ["call get_weather", "call get_time"],
        "talk_and_call": ["call get_time"],
    }[name]


MARKS = [
    *MARKED.marks,
    *MISTRAL.marks,
    *DEEPSEEK.marks,
    *(mark for form in NEW for mark in form.marks),
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    " to=f",
    "```",
]
BITS = st.sampled_from(
    [
        *MARKS,
        "f>",
        "call:f",
        ' name="f">',
        ' name="">',
        "<parameter=a>\n",
        "</parameter>",
        "\n",
        ":",
        "functions.f:0",
        '{"name": "f", "arguments": ',
        r'{"name": "\x", "arguments": ',
        "{",
        "}",
        '"',
        ",",
        "[",
        "]",
        "\\",
        "analysis",
        " ",
    ]
)


@given(st.lists(BITS | st.text(max_size=4), max_size=12))
@settings(derandomize=True, deadline=None, max_examples=200)
@pytest.mark.thorough
def test_no_text_breaks_a_reader_and_cuts_change_nothing(pieces: list[str]) -> None:
    def told(form: AnswerForm, given_pieces: list[str]) -> list[tuple[str, str]]:
        reader, found = reader_of(form), list[list[str]]()
        for piece in [*(each for text in given_pieces for each in reader.push(text)), *reader.finish()]:
            kind = f"call {piece.name}" if isinstance(piece, CallBegun) else type(piece).__name__
            text = "" if isinstance(piece, CallBegun) else piece.text
            if isinstance(piece, CallBegun) or not found or found[-1][0] != kind:
                found.append([kind, ""])
            found[-1][1] += text
        return [(kind, text) for kind, text in found]

    for form in (MARKED, BARE, MISTRAL, OLD_MISTRAL, FIREFUNCTION, DEEPSEEK, CHANNELS, *NEW, AnswerForm()):
        assert told(form, list("".join(pieces))) == told(form, pieces)
