"""Limits on what a request can size: more is a 400, and costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asking import ask
from scripted_model import write_scripted_model

SAID = [{"role": "user", "content": "[ok]"}]
NAMED: dict[str, Any] = {"model": "scripted", "messages": SAID}
FUNCTION = {"name": "f", "parameters": {}}
MANY_TEXTS = ["a"] * 3000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


def nested(depth: int) -> Any:
    found: Any = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def called(arguments: Any) -> list[dict[str, Any]]:
    """A conversation with a call in it."""
    function = {"name": "f", "arguments": json.dumps(arguments)}
    call = {"id": "1", "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": "1", "content": "x"}
    return [{"role": "assistant", "tool_calls": [call]}, answer, *SAID]


@pytest.mark.fault("a request has more parts than any client needs", "400 that names the field")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**NAMED, "n": 10**9}),
        ("/v1/chat/completions", {**NAMED, "stop": ["s"] * 33}),
        ("/v1/chat/completions", {**NAMED, "tools": [{"type": "function", "function": FUNCTION}] * 129}),
        ("/v1/chat/completions", {**NAMED, "logit_bias": {str(id): 1 for id in range(100_000)}}),
        ("/v1/chat/completions", {**NAMED, "messages": SAID * 10_000}),
        ("/v1/messages", {**NAMED, "max_tokens": 1, "stop_sequences": ["s"] * 33}),
        ("/v1/messages", {**NAMED, "max_tokens": 1, "tools": [{"name": "f", "input_schema": {}}] * 129}),
        ("/api/chat", {**NAMED, "stream": False, "options": {"stop": ["x" * 2000]}}),
        ("/api/chat", {**NAMED, "stream": False, "tools": [{}] * 129}),
        ("/api/embed", {"model": "scripted", "input": MANY_TEXTS}),
        ("/v1/embeddings", {"input": MANY_TEXTS}),
        ("/v1/rerank", {"query": "q", "documents": MANY_TEXTS}),
        ("/v1/completions", {"prompt": MANY_TEXTS}),
    ],
)
def test_more_than_the_limit_is_a_400(model: Path, path: str, body: dict[str, Any]) -> None:
    status, _ = ask(model, path, body)
    assert status == 400


LONG = "word and " * 150_000


@pytest.mark.fault("a text is longer than any context", "413, before it is cut into tokens")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
        ),
        ("/v1/chat/completions", {"messages": SAID, "chat_template_kwargs": {"x": [LONG]}}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
        ("/tokenize", {"content": LONG}),
        ("/v1/embeddings", {"input": [LONG]}),
        ("/v1/rerank", {"query": "q", "documents": [LONG]}),
    ],
)
def test_a_text_that_fits_no_context_is_a_413(model: Path, path: str, body: dict[str, Any]) -> None:
    status, _ = ask(model, path, {"model": "scripted", **body})
    assert status == 413


@pytest.mark.fault("a request is nested deeply", "200, or 400; never a fault")
@pytest.mark.parametrize("depth", [50, 400, 900])
@pytest.mark.few(1)
def test_deep_values_are_no_fault(model: Path, depth: int) -> None:
    function = {"name": "f", "parameters": nested(depth)}
    for body in (
        {"messages": called(nested(depth))},
        {"messages": SAID, "tools": [{"type": "function", "function": function}]},
        {"messages": SAID, "tools": [{"type": "function", "function": {**function, "strict": True}}]},
        {"messages": SAID, "chat_template_kwargs": nested(depth)},
    ):
        status, found = ask(
            model, "/v1/chat/completions", {"model": "scripted", "max_tokens": 2, **body}, context=4096
        )
        assert status in (200, 400), found


BOMBS = [
    {"type": "string", "pattern": "(((a{1,100}){1,100}){1,100}){1,100}"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
    {"enum": [f"v{number}" for number in range(20_000)]},
    {"anyOf": [{"properties": {f"a{name}": {"type": "integer"} for name in range(30)}}] * 200},
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:1/schema"},
    {
        "$ref": "#/$defs/a24",
        "$defs": {
            "a0": {"type": "string"},
            **{
                f"a{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/a{n - 1}"}] * 2, "minItems": 2}
                for n in range(1, 25)
            },
        },
    },
]


@pytest.mark.fault("a tool's schema is a bomb", "an answer or 400, at once")
@pytest.mark.parametrize("schema", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.few(3)
def test_a_tools_schema_of_any_size_is_an_answer_or_a_400(model: Path, schema: Any) -> None:
    inside = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    for parameters in (schema, inside):
        function = {"name": "f", "parameters": parameters, "strict": True}
        body = {"tools": [{"type": "function", "function": function}], "max_tokens": 4, "temperature": 0}
        status, found = ask(model, "/v1/chat/completions", {**NAMED, **body})
        assert status in (200, 400), found
        assert status == 200 or found["error"]["param"] in ("tools", None)


@pytest.mark.fault("a schema is a bomb", "an answer or 400, at once")
@pytest.mark.parametrize("schema", BOMBS, ids=range(len(BOMBS)))
@pytest.mark.few(3)
def test_a_schema_of_any_size_is_an_answer_or_a_400(model: Path, schema: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    status, found = ask(
        model, "/v1/chat/completions", {**NAMED, "response_format": wanted, "max_tokens": 4, "temperature": 0}
    )
    assert status in (200, 400), found
