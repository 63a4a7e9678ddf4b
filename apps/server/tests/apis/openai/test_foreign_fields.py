"""Fields of other servers: what has a meaning is served, hints are named as ignored, all else is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asking import ask, ask_chat
from openai_requests import FORMATS
from scripted_model import SCRIPTS, write_scripted_model
from serving import client_of

THINKS = "{# enable_thinking #}{{ '[on]' if enable_thinking is defined and enable_thinking else '[off]' }}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = {"quiet": SCRIPTS["quiet"], **SCRIPTS}
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf", scripts)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose template shows, with a call, whether the model is to reason."""
    return write_scripted_model(tmp_path_factory.mktemp("thinker") / "scripted.gguf", call=THINKS)


def prompt(thinker: Path, **fields: Any) -> Any:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "1", "content": "[ok]"}]
    return ask(thinker, "/apply-template", {"model": "scripted", "messages": messages, **fields})


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "[off]"),
        ({"enable_thinking": True}, "[on]"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "[on]"),
        ({"thinking": {"type": "disabled"}}, "[off]"),
        ({"reasoning": {"enabled": True}}, "[on]"),
        ({"reasoning": {"effort": "high"}}, "[on]"),
        ({"reasoning": {"effort": "none"}, "enable_thinking": False}, "[off]"),
        ({"reasoning_effort": "low", "enable_thinking": True}, "[on]"),
    ],
)
def test_every_form_of_the_wish_for_reasoning_is_served(
    thinker: Path, fields: dict[str, Any], shown: str
) -> None:
    status, body = prompt(thinker, **fields)
    assert (status, shown in body["prompt"]) == (200, True)


def test_contrary_wishes_are_a_400(thinker: Path) -> None:
    status, body = prompt(thinker, enable_thinking=True, thinking={"type": "disabled"})
    assert (status, body["error"]["param"]) == (400, "reasoning")


@FORMATS
@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": {"enum": ["abc"]}},
        {"guided_json": '{"enum": ["abc"]}'},
        {"structured_outputs": {"json": {"enum": ["abc"]}}},
        {"guided_regex": '"ab[c]"'},
        {"structured_outputs": {"regex": '"ab[c]"'}},
        {"guided_choice": ['"abc"']},
        {"guided_grammar": 'root ::= "\\"abc\\""'},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.few(6)
def test_the_formats_of_vllm_are_obeyed(model: Path, path: str, fields: dict[str, Any]) -> None:
    said = {"messages": [{"role": "user", "content": "[hello]"}]} if "chat" in path else {"prompt": "[hello]"}
    status, body = ask(model, path, {"model": "scripted", **said, **fields, "temperature": 0})
    assert status == 200, body
    [choice] = body["choices"]
    assert json.loads(choice["text"] if "text" in choice else choice["message"]["content"]) == "abc"


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": "{"},
        {"guided_json": '"x"'},
        {"guided_choice": ["a"], "guided_regex": "a"},
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        {"structured_outputs": {"unknown": 1}},
        {"min_tokens": 3},
        {"stop_token_ids": [5]},
        {"skip_special_tokens": False},
        {"use_beam_search": True},
        {"include_stop_str_in_output": True},
        {"truncate_prompt_tokens": 5},
        {"reasoning": {"exclude": True}},
        {"reasoning_format": "none"},
        {"parse_tool_calls": False},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"transforms": ["middle-out"]},
    ],
)
def test_what_would_change_the_answer_in_silence_is_refused(model: Path, fields: dict[str, Any]) -> None:
    status, body = ask_chat(model, "ok", **fields)
    assert status == 400
    assert any(name in body["error"]["message"] for name in (*fields, "format", "unknown"))


@FORMATS
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"type": "nothing"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"guided_grammar": "root :="}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"], "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"json_schema": {"type": "nothing"}}, "json_schema"),
        ({"response_format": {"type": "regex", "regex": "("}}, "response_format"),
    ],
)
def test_an_error_names_the_field_that_gave_the_format(
    model: Path, fields: dict[str, Any], param: str
) -> None:
    status, body = ask_chat(model, "ok", **fields)
    assert (status, body["error"]["param"]) == (400, param)
    assert param in body["error"]["message"]


def test_values_that_ask_for_nothing_are_taken(model: Path) -> None:
    end = ask(model, "/tokenize", {"model": "scripted", "content": "</s>"})[1]["tokens"]
    status, body = ask_chat(
        model,
        "count",
        min_tokens=0,
        stop_token_ids=end,
        skip_special_tokens=True,
        length_penalty=1.0,
        reasoning_format="auto",
        parse_tool_calls=True,
        add_generation_prompt=True,
        repetition_penalty=1.0,
        n_predict=3,
        temperature=0,
    )
    assert status == 200, body
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
def test_a_header_names_the_fields_that_are_ignored(model: Path, stream: bool) -> None:
    async def asked(**fields: Any) -> str | None:
        async with client_of(model) as client:
            messages = [{"role": "user", "content": "[ok]"}]
            body = {"model": "scripted", "messages": messages, "stream": stream, **fields}
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200
            return answer.headers.get("x-backbay-ignored")

    assert asyncio.run(asked(temperature=0, user=None)) is None
    fields = {"user": "me", "return_progress": True, "thinking": {"type": "auto", "budget_tokens": 3}}
    told = asyncio.run(asked(**fields))
    assert told is not None
    assert set(told.split(", ")) == {"user", "return_progress", "thinking.budget_tokens"}


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        ("/v1/responses", {"input": "[ok]", "personality": "friendly"}, "personality"),
        ("/v1/messages", {"fallbacks": [{"model": "other"}]}, "fallbacks"),
        ("/v1/messages", {"fallback_credit_token": "token"}, "fallback_credit_token"),
        ("/v1/completions", {"prompt": "[ok]", "best_of": 0}, None),
    ],
)
def test_fields_of_the_newest_clients_are_hints(
    model: Path, path: str, fields: dict[str, Any], told: str | None
) -> None:
    async def asked() -> Any:
        async with client_of(model) as client:
            messages = {"max_tokens": 9, "messages": [{"role": "user", "content": "[ok]"}]}
            body = {"model": "scripted", **(messages if path == "/v1/messages" else {}), **fields}
            return await client.post(path, json=body)

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.headers.get("x-backbay-ignored")) == (200, told)
