"""Grammars of answers that call tools: which answers they allow."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from backbay_server.generation.forms import AnswerForm, call_format, form_of
from backbay_server.generation.requests import Tools

llguidance = pytest.importorskip("llguidance")
CITY = {"type": "object", "properties": {"city": {"enum": ['K"\u00f6}', "a/b\n"]}}, "required": ["city"]}
NAMES = ("f", "foo", 'q"x/')
DEFINITIONS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in NAMES]
GOOD, BAD = json.dumps({"city": 'K"\u00f6}'}, ensure_ascii=False), '{"city": 5}'
CALLS, CALL, SEP, CALLED, OVER = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'


def bare(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "parameters": {arguments}}}'


def mistral(name: str, arguments: str) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{arguments}"


def old_mistral(name: str, arguments: str) -> str:
    return f'[TOOL_CALLS][{{"name": {json.dumps(name)}, "arguments": {arguments}}}]'


def deepseek(name: str, arguments: str) -> str:
    return f"{CALLS}{CALL}{name}{SEP}{arguments}{CALLED}{OVER}"


def deepseek_r1(name: str, arguments: str) -> str:
    return f"{CALLS}{CALL}function{SEP}{name}\n```json\n{arguments}\n```{CALLED}{OVER}"


def channel(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def role(name: str, arguments: str) -> str:
    return f" to=functions.{name}<|channel|>commentary json<|message|>{arguments}"


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
    "DeepSeek": Case(CALL, deepseek, ["Yes"]),
    "DeepSeek, control": Case(CALL, deepseek, ["Yes"], (CALLS, CALL, SEP, CALLED, OVER)),
    "DeepSeek R1": Case(f"{CALL}```json</think>", deepseek_r1, ["<think>Hm</think>Yes"]),
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
    case: Case, *, forced: bool, strict: Sequence[str] = NAMES, inside: bool = False
) -> tuple[Mapping[str, Any], Vocabulary]:
    form: AnswerForm = form_of(case.template, tools=True)
    vocabulary = Vocabulary(case.control)
    tools = Tools(DEFINITIONS, frozenset(strict), forced)
    return call_format(form, tools, vocabulary, inside=inside), vocabulary  # type: ignore[arg-type]


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
