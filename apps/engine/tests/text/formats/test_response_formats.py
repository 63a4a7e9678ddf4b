"""Answers with a format: a schema, a regular expression, a grammar or a choice."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small_llama import EOS, SUPPRESSED

from backbay import OptionError
from backbay_engine import LLM, RequestError, ResponseFormat, ResponseFormatError, load
from backbay_engine.text.formats import check_format, response_format_of
from backbay_engine.text.formats.response_format import LONGEST

pytest.importorskip("llguidance")

SIZES: dict[str, Any] = {"context": 256, "parallel": 3, "num_threads": 1, "kv_dtype": "f32"}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "integer", "minimum": -3, "maximum": 12},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "boolean"},
    {"type": "null"},
    {"const": {"a": [1, "é", None]}},
    {"enum": ["red", "green", 3, None]},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]{2}$"},
    {"type": "string", "format": "date"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": False, "minItems": 2},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    {"oneOf": [{"const": 1}, {"const": "one"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
    {"type": ["integer", "null"]},
    {
        "$defs": {"side": {"enum": ["l", "r"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/side"},
        "maxItems": 2,
    },
    {
        "type": "object",
        "properties": {
            "deep": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        },
        "required": ["deep"],
        "additionalProperties": False,
    },
    {"title": "described", "description": "a text", "type": "string", "maxLength": 3, "examples": ["a"]},
]


@pytest.fixture(scope="module")
def small(path: Path) -> Iterator[LLM]:
    with load(path, "cpu_ref", **SIZES) as opened:
        yield opened


def whole_answer(llm: LLM, wanted: Any, seed: int) -> str:
    """The text of an answer that ended by itself; some are too long for the context."""
    for attempt in range(seed, seed + 400, 20):
        answer = llm.generate("x", response_format=wanted, seed=attempt, temperature=1.0)
        if answer.finish_reason == "stop":
            assert answer.tokens[-1] == EOS
            return answer.text
    raise AssertionError(f"no answer of {wanted} ends")


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
@pytest.mark.few(8)
def test_answers_are_valid_by_their_schema(small: LLM, number: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for seed in range(3):
        found = json.loads(whole_answer(small, SCHEMAS[number], seed))
        jsonschema.Draft202012Validator(SCHEMAS[number]).validate(found)


def test_formats_hold_everywhere(llm: LLM) -> None:
    person = json.loads(whole_answer(llm, PERSON, 0))
    assert set(person) == {"name", "age"}
    assert re.fullmatch(r"[0-9]{3}-[a-c]+", whole_answer(llm, re.compile(r"[0-9]{3}-[a-c]+"), 0))
    assert re.fullmatch(r"[ab]{4}", whole_answer(llm, "[ab]{4}", 0))
    assert re.fullmatch(r"a[0-9]{2}", whole_answer(llm, 'start: "a" NUM\nNUM: /[0-9]{2}/', 0))
    assert re.fullmatch(r"x[0-9]", whole_answer(llm, 'root ::= "x" [0-9]', 0))
    choices = ["yes", "nö\n", 'say "no"', "\\"]
    assert {whole_answer(llm, choices, seed) for seed in range(10)} <= set(choices)
    assert [whole_answer(llm, [choice], 0) for choice in choices] == choices


def test_a_choice_may_have_thousands_of_texts(llm: LLM) -> None:
    """More than a grammar may have alternatives, which are 2000; every character of ASCII stands for itself."""
    choices = [f"{number:x} {chr(32 + number % 95)}" for number in range(5000)]
    assert {whole_answer(llm, choices, seed) for seed in range(5)} <= set(choices)
    ascii = "".join(chr(number) for number in range(1, 128) if number != SUPPRESSED)
    assert whole_answer(llm, [ascii], 0) == ascii


def test_requests_with_different_formats_share_their_steps(llm: LLM) -> None:
    formats: list[Any] = [PERSON, "[ab]{4}", None, ["yes", "no"], "[0-9]{6}", None]
    options = {"max_tokens": 20, "temperature": 0, "logit_bias": {EOS: -5.0}}
    alone = [llm.generate("x", response_format=each, **options).tokens for each in formats]
    handles = [llm.submit("x", response_format=each, **options) for each in formats]
    assert [handle.result(300).tokens for handle in handles] == alone


def test_an_answer_with_a_format_goes_on_after_any_of_its_tokens(llm: LLM) -> None:
    options = {"max_tokens": 12, "seed": 4, "response_format": PERSON}
    whole = llm.generate("x", **options)
    for cut in range(len(whole.tokens)):
        assert llm.generate("x", resume=whole.tokens[:cut], **options).tokens == whole.tokens


def test_an_answer_with_a_format_can_be_cancelled_at_any_time(llm: LLM) -> None:
    options = {"max_tokens": 10**6, "num_keep": 0, "logit_bias": {EOS: float("-inf")}}
    for _ in range(10):
        handles = [llm.submit("x", response_format="[ab]*", **options) for _ in range(4)]
        for handle in handles:
            handle.cancel()
        assert {handle.result(300).finish_reason for handle in handles} == {"cancelled"}
    llm.forget()  # waits until nothing runs


def test_an_answer_that_is_cut_says_so(llm: LLM) -> None:
    answer = llm.generate("x", response_format=PERSON, max_tokens=3, seed=1)
    assert answer.finish_reason == "length"


@pytest.mark.fault(
    "a schema that no answer can meet, or that is not understood", "ResponseFormatError at submit"
)
@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"not": {}}, r'Unimplemented keys: \["not"\]'),
        ({"type": "string", "enum": []}, "Unsatisfiable schema"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "Unsatisfiable schema"),
        ({"$ref": "#"}, "no text can be an answer"),
        ({"$ref": "https://example.com/schema"}, "not present"),
        ({"type": "nonsense"}, "nonsense"),
        ({"const": {1, 2}}, "a JSON schema must be plain JSON"),
        ({"const": float("nan")}, "a JSON schema must be plain JSON"),
        ({"type": "json_schema"}, "no schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "no schema"),
        ({"type": "json_schema", "json_schema": {"schema": 5}}, "a JSON schema must be a mapping"),
        ("(", "unclosed group"),
        ("start: foo", "unknown name"),
        (re.compile("a", re.IGNORECASE), "without flags"),
        (re.compile(b"a"), "must be a text"),
        ([], "choices must be texts that are not empty"),
        ([""], "choices must be texts that are not empty"),
        (["a", 1], "choices must be texts that are not empty"),
        (5, "response_format must be a JSON schema"),
        (b"a", "response_format must be a JSON schema"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_no_answer_can_be_is_refused_at_submit(llm: LLM, wanted: Any, told: str) -> None:
    with pytest.raises(ResponseFormatError, match=told):
        llm.submit("x", response_format=wanted)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.fault("a schema or grammar is hostile: deep, huge, explosive", "ResponseFormatError at submit")
@pytest.mark.parametrize(
    "wanted",
    [
        lambda: nested(400),
        lambda: nested(100_000),
        lambda: {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
        lambda: "(" * 100_000 + "a" + ")" * 100_000,
        lambda: "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
        lambda: "a" * (LONGEST + 1),
    ],
    ids=["deep", "deepest", "wide", "regex", "grammar", "long"],
)
def test_what_is_hostile_is_refused_at_submit(llm: LLM, wanted: Callable[[], Any]) -> None:
    with pytest.raises(ResponseFormatError):
        llm.submit("x", response_format=wanted())


@pytest.mark.parametrize("wanted", ["((a{1,1000}){1,1000}){1,1000}", "(a|b|ab)*c", "(.*a){12}", r"(x+x+)+y"])
def test_what_is_explosive_ends(llm: LLM, wanted: str) -> None:
    with suppress(ResponseFormatError):
        assert len(llm.generate("x", response_format=wanted, max_tokens=40, seed=1).tokens) <= 40
    assert llm.generate("after", max_tokens=1).tokens


def test_formats_have_the_forms_of_other_apis() -> None:
    schema = json.dumps(PERSON)
    for given in (
        PERSON,
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
        {"type": "json_schema", "name": "person", "schema": PERSON},
        type("Person", (), {"model_json_schema": staticmethod(lambda: PERSON)}),
        ResponseFormat("schema", schema),
    ):
        assert response_format_of(given) == ResponseFormat("schema", schema)
    assert response_format_of({"type": "json_object"}) == ResponseFormat("schema", '{"type": "object"}')
    assert response_format_of({"type": "text"}) is response_format_of(None) is None
    assert response_format_of({"type": "regex", "regex": "a"}) == ResponseFormat("regex", "a")
    assert response_format_of({"type": "grammar", "grammar": "x"}) == ResponseFormat("grammar", "x")
    assert response_format_of({"type": "choice", "choice": ["a"]}) == ResponseFormat("choice", '["a"]')
    assert response_format_of("?start: a")
    assert response_format_of("the start: of") == ResponseFormat("regex", "the start: of")


def test_a_constraint_and_a_format_are_too_much(llm: LLM) -> None:
    class Any_:
        def mask(self) -> None: ...
        def accept(self, token: int) -> None: ...

    with pytest.raises(RequestError, match="a constraint or a response_format, not both"):
        llm.submit("x", constraint=Any_(), response_format="a")


@pytest.mark.fault(
    "llguidance is not installed, and an answer is to have a format", "OptionError naming the package"
)
def test_without_llguidance_the_extra_is_named(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match="pip install llguidance"):
        llm.submit("x", response_format="a")
    assert llm.generate("x", max_tokens=1).tokens


def test_a_model_without_an_end_token_ends_with_its_format(path: Path) -> None:
    """The answer ends where nothing may follow."""
    with load(path, "cpu_ref", **SIZES) as llm:
        llm.tokenizer.end_ids = frozenset()
        answer = llm.generate("x", response_format="[ab]{4}", seed=1)
        assert re.fullmatch("[ab]{4}", answer.text)
        assert (len(answer.tokens), answer.finish_reason) == (4, "stop")


@pytest.mark.parametrize(
    "keyword", [{"pattern": "a{%d}"}, {"pattern": "a{%d,}"}], ids=["exact lengths", "least lengths"]
)
@pytest.mark.few(1)
def test_a_schema_that_takes_minutes_to_compile_is_refused(keyword: dict[str, str]) -> None:
    patterns = [{"type": "string", "pattern": keyword["pattern"] % n} for n in range(1, 61)]
    with pytest.raises(ResponseFormatError, match="compiling it failed: it took more than"):
        check_format(response_format_of({"allOf": patterns}))
    check_format(response_format_of({"type": "integer"}))  # the next trial has a new process


@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
def test_a_format_is_tried_by_the_host_and_not_again_by_its_worker(path: Path) -> None:
    """Who tries a format starts a process for it."""
    wanted = {"type": "integer", "maximum": 99}
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        assert int(llm.generate("x", response_format=wanted, seed=1).text) <= 99
        tasks = Path(f"/proc/{llm.worker_pid}/task").iterdir()
        assert "".join((task / "children").read_text() for task in tasks) == ""
        with pytest.raises(ResponseFormatError):
            llm.submit("x", response_format={"not": {}})
