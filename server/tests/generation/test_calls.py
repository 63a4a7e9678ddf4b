"""The parts of answers: the same, however the text is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_model import SCRIPTS

from backbay_server.generation.calls import (
    AnswerForm,
    AnswerParser,
    CallArguments,
    CallBegun,
    Reasoning,
    Text,
    form_of,
)

MARKED, BARE = AnswerForm(reasons=True, marked=True), AnswerForm(reasons=True, bare=True)
WEATHER = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "a } \\" b", "days": [1, {}]}}\n</tool_call>'
)
ARGUMENTS = {"city": 'a } " b', "days": [1, {}]}


def parts(form: AnswerForm, pieces: list[str], *, inside: bool = False) -> list[tuple[str, object]]:
    """Reasoning, text and calls, joined."""
    parser = AnswerParser(form, inside=inside)
    found: list[list[str]] = []
    for given_piece in [*(each for piece in pieces for each in parser.push(piece)), *parser.finish()]:
        match given_piece:
            case CallBegun(number, id, name):
                assert len(id) == 9
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
}


@pytest.mark.parametrize("name", CASES)
@given(cuts=st.lists(st.integers(1, 200), max_size=8))
@settings(derandomize=True, deadline=None, max_examples=25)
def test_parts_do_not_depend_on_how_a_text_is_cut(name: str, cuts: list[int]) -> None:
    form, text, expected = CASES[name]
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    pieces = [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert parts(form, pieces) == expected
    assert parts(form, list(text)) == expected


def test_arguments_are_passed_on_as_they_grow() -> None:
    parser = AnswerParser(MARKED)
    assert parser.push('<tool_call>{"name": "f", "arguments": {"a"')[1:] == [CallArguments(0, '{"a"')]
    assert parser.push(": [1") == [CallArguments(0, ": [1")]
    assert parser.push("]}}</tool_call>") == [CallArguments(0, "]}")]
    assert parser.finish() == []


def test_a_prompt_may_have_begun_the_reasoning() -> None:
    assert parts(MARKED, ["Hm</th", "ink> Yes"], inside=True) == [("reasoning", "Hm"), ("text", "Yes")]
    assert parts(MARKED, ["Hm</th"], inside=True) == [("reasoning", "Hm</th")]


def test_a_template_shows_the_form() -> None:
    assert form_of("{{ '<tool_call>' }} </think>", tools=True) == MARKED
    assert form_of("{{ '<tool_call>' }} </think>", tools=False) == AnswerForm(reasons=True)
    assert form_of("{{ tools }}", tools=True) == AnswerForm(bare=True)


@pytest.mark.parametrize("name", ["weather", "both", "talk_and_call"])
def test_calls_of_the_scripted_model_are_found(name: str) -> None:
    steps = [step for step in SCRIPTS[name].steps if isinstance(step, str)]
    assert [kind for kind, _ in parts(MARKED, steps) if kind != "text"] == {
        "weather": ["call get_weather"],
        "both": ["call get_weather", "call get_time"],
        "talk_and_call": ["call get_time"],
    }[name]


@given(st.lists(st.text(alphabet='<>/think_ol_ca{}"\\:, name', max_size=12), max_size=12))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_no_text_breaks_the_parser(pieces: list[str]) -> None:
    for form in (MARKED, BARE, AnswerForm()):
        parser = AnswerParser(form)
        for piece in pieces:
            parser.push(piece)
        parser.finish()
    assert "".join(
        piece.text for each in pieces for piece in AnswerParser(AnswerForm()).push(each)
    ) == "".join(pieces)
