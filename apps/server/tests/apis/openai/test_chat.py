"""Chat completions, over the scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from asking import ask_chat
from openai_requests import FORMATS
from scripted_model import SCRIPTS, write_scripted_model
from serving import client_of

import backbay_engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


def test_an_answer_is_whole(model: Path):
    status, body = ask_chat(model, "hello")
    assert status == 200
    [choice] = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello, world!", "refusal": None},
        "finish_reason": "stop",
        "logprobs": None,
    }
    assert body["object"] == "chat.completion"
    assert body["model"] == "scripted"
    assert (
        body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]
    )


def test_a_stream_has_the_same_answer_in_pieces(model: Path):
    status, chunks = ask_chat(model, "hello", stream=True, stream_options={"include_usage": True})
    assert status == 200
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == 5
    told = [chunk["choices"][0] for chunk in chunks[:-2]]
    assert told[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in told) == "Hello, world!"
    assert [choice["finish_reason"] for choice in told[-2:]] == [None, "stop"]


def test_an_unknown_model_is_a_404(model: Path):
    status, body = ask_chat(model, "hello", model="other")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"temprature": 1}, "temprature"),
        ({"messages": []}, "messages"),
        ({"tools": [{}]}, "tools[0]"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(model: Path, fields: dict[str, Any], param: str):
    status, body = ask_chat(model, "hello", **fields)
    assert (status, body["error"]["type"], body["error"]["param"]) == (400, "invalid_request_error", param)


def test_logprobs_have_the_bytes_of_tokens_and_no_end(model: Path):
    _, body = ask_chat(model, "euro", logprobs=True, top_logprobs=2, temperature=0)
    [choice] = body["choices"]
    content = choice["logprobs"]["content"]
    joined = bytes(byte for token in content for byte in token["bytes"])
    assert joined.decode() == choice["message"]["content"] == SCRIPTS["euro"].text
    assert all(len(token["top_logprobs"]) == 2 for token in content)
    assert all(token["top_logprobs"][0]["logprob"] == token["logprob"] for token in content)


def test_streamed_logprobs_are_those_of_the_whole_answer(model: Path):
    _, body = ask_chat(model, "euro", logprobs=True, top_logprobs=0, temperature=0)
    _, chunks = ask_chat(model, "euro", logprobs=True, top_logprobs=0, temperature=0, stream=True)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    assert [token for part in parts if part for token in part["content"]] == body["choices"][0]["logprobs"][
        "content"
    ]


def test_choices_differ_and_a_seed_repeats_them(model: Path):
    fields = {"n": 4, "seed": 3, "temperature": 1, "max_tokens": 40, "top_p": 1}
    _, body = ask_chat(model, "dice", **fields)
    _, again = ask_chat(model, "dice", **fields)
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert body["usage"]["completion_tokens"] == 160


def test_stop_strings_end_an_answer_and_are_not_in_it(model: Path):
    _, body = ask_chat(model, "stops", stop=["STOP", "ENDING"])
    assert body["choices"][0]["message"]["content"] == "one "
    assert body["choices"][0]["finish_reason"] == "stop"
    _, chunks = ask_chat(model, "stops", stop="STOP", stream=True)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "one "


def test_max_completion_tokens_goes_before_max_tokens(model: Path):
    _, body = ask_chat(model, "count", max_tokens=30, max_completion_tokens=2)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


def test_logit_bias_forbids_and_forces_tokens(model: Path):
    _, body = ask_chat(model, "coin", logprobs=True, top_logprobs=2, temperature=0)
    names = {top["token"] for top in body["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
    assert names == {"heads", "tails"}
    tails = tokens_of(model, "tails")
    heads = tokens_of(model, "heads")
    _, body = ask_chat(model, "coin", logit_bias={str(heads): -100}, temperature=0)
    assert body["choices"][0]["message"]["content"] == "tails"
    _, body = ask_chat(model, "coin", logit_bias={str(tails): 100}, temperature=0, max_tokens=1)
    assert body["choices"][0]["message"]["content"] == "tails"


def tokens_of(model: Path, text: str) -> int:
    with backbay_engine.load(model, "cpu_ref", context=64) as llm:
        return llm.tokenizer.token_id(text)


def test_an_overflow_is_a_400_with_both_counts(model: Path):
    _, body = ask_chat(model, "x" * 2000)
    error = body["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["n_ctx"] == 512
    assert error["n_prompt_tokens"] > 2000
    assert error["message"].startswith("This model's maximum context length is 512 tokens")


WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def test_calls_of_tools_are_told_whole_and_in_pieces(model: Path):
    _, body = ask_chat(model, "weather", tools=[WEATHER])
    [choice] = body["choices"]
    [called] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert called["function"]["name"] == "get_weather"
    _, chunks = ask_chat(model, "weather", tools=[WEATHER], stream=True)
    deltas = [delta for chunk in chunks[:-1] for delta in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "get_weather"
    assert (
        "".join(delta["function"].get("arguments", "") for delta in deltas) == called["function"]["arguments"]
    )
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_without_parallel_calls_there_is_one(model: Path):
    _, body = ask_chat(model, "both", tools=[WEATHER], parallel_tool_calls=False)
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    _, body = ask_chat(model, "both", tools=[WEATHER])
    assert len(body["choices"][0]["message"]["tool_calls"]) == 2


def test_without_tools_a_call_is_text(model: Path):
    for fields in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        _, body = ask_chat(model, "weather", **fields)
        assert body["choices"][0]["message"]["content"] == SCRIPTS["weather"].text


def test_a_result_without_its_call_is_a_400(model: Path):
    messages = [{"role": "user", "content": "[ok]"}, {"role": "tool", "tool_call_id": "1", "content": "x"}]
    status, body = ask_chat(model, "ok", messages=messages)
    assert (status, body["error"]["param"]) == (400, "messages[1].tool_call_id")


@pytest.mark.parametrize("name", ["self", "bos_token", "raise_exception", "a b", "__class__"])
def test_any_variable_of_a_template_may_be_given(model: Path, name: str):
    status, _ = ask_chat(model, "ok", chat_template_kwargs={name: "x"})
    assert status == 200


@pytest.mark.fault("a request brings its own chat template", "400 that names the field")
@pytest.mark.parametrize(
    "fields", [{"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}]
)
def test_a_template_of_the_request_is_refused(model: Path, fields: dict[str, Any]):
    status, body = ask_chat(model, "ok", **fields)
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "chat_template" in body["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [WEATHER]},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "f"}]},
    ],
)
def test_what_is_not_there_is_refused(model: Path, fields: dict[str, Any]):
    status, _ = ask_chat(model, "ok", **fields)
    assert status == 400


def test_fields_without_effect_are_taken(model: Path):
    status, body = ask_chat(
        model,
        "hello",
        user="me",
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="k",
        response_format={"type": "text"},
        tool_choice=None,
        parallel_tool_calls=None,
        reasoning_effort="low",
        modalities=["text"],
        stop=None,
        seed=None,
        logit_bias=None,
    )
    assert (status, body["choices"][0]["message"]["content"]) == (200, "Hello, world!")


def test_the_cache_is_counted(model: Path):
    async def asking() -> list[int]:
        async with client_of(model) as client:
            sent = {"messages": [{"role": "user", "content": "long enough to be kept [ok]"}]}
            found = [await client.post("/v1/chat/completions", json=sent) for _ in range(2)]
            return [each.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for each in found]

    first, second = asyncio.run(asking())
    assert first == 0
    assert second > 0


def test_a_picture_for_a_model_that_sees_none_is_a_400(model: Path):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    status, _ = ask_chat(model, "ok", messages=[{"role": "user", "content": [part]}])
    assert status == 400


@pytest.mark.parametrize("url", ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/x.png"])
def test_no_request_reaches_files_or_the_network(model: Path, url: str):
    part = {"type": "image_url", "image_url": {"url": url}}
    status, body = ask_chat(model, "ok", messages=[{"role": "user", "content": [part]}])
    assert status == 400
    assert "root" not in str(body)


def json_schema(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def test_an_answer_obeys_its_schema(model: Path):
    properties = {"answer": {"type": "integer"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["answer"],
        "additionalProperties": False,
    }
    _, body = ask_chat(model, "json", response_format=json_schema(schema), temperature=0)
    assert json.loads(body["choices"][0]["message"]["content"]) == {"answer": 42}
    _, body = ask_chat(model, "hello", response_format=json_schema({"enum": ["yes"]}), temperature=0)
    assert body["choices"][0]["message"]["content"] == '"yes"'
    _, body = ask_chat(model, "hello", response_format={"type": "choice", "choice": ["no"]}, temperature=0)
    assert body["choices"][0]["message"]["content"] == "no"


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"type": "nothing"}, {"type": "string", "pattern": "("}, False]
)
def test_a_schema_that_cannot_be_obeyed_is_a_400(model: Path, schema: Any):
    status, body = ask_chat(model, "json", response_format=json_schema(schema))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert body["error"]["param"].startswith("response_format")


DAYS = {
    "type": "object",
    "$defs": {"day": {"enum": [1]}},
    "properties": {"days": {"$ref": "#/$defs/day"}},
    "required": ["days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "rain"}}])
def test_a_call_can_be_forced(model: Path, choice: Any, stream: bool):
    tools = [{"type": "function", "function": {"name": name, "parameters": DAYS}} for name in ("rain", "sun")]
    status, body = ask_chat(
        model, "hello", tools=tools, tool_choice=choice, temperature=0, stream=stream, context=1024
    )
    assert status == 200
    if stream:
        deltas = [call for chunk in body[:-1] for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        name = deltas[0]["function"]["name"]
        arguments = "".join(call["function"].get("arguments", "") for call in deltas)
        assert body[-2]["choices"][0]["finish_reason"] == "tool_calls"
    else:
        [called] = body["choices"][0]["message"]["tool_calls"]
        name, arguments = called["function"]["name"], called["function"]["arguments"]
        assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert name in (("rain", "sun") if choice == "required" else ("rain",))
    assert json.loads(arguments) == {"days": 1}


def test_a_length_of_minus_one_is_as_long_as_may_be(model: Path):
    for name in ("max_tokens", "max_completion_tokens"):
        _, body = ask_chat(model, "hello", **{name: -1})
        assert body["choices"][0]["finish_reason"] == "stop"
        status, body = ask_chat(model, "hello", **{name: 0})
        assert (status, body["error"]["param"]) == (400, name)


def test_some_tools_can_be_allowed(model: Path):
    tools = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("get_weather", "get_time")
    ]

    def allowed(name: str, mode: str) -> Any:
        one = {"type": "function", "function": {"name": name}}
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [one]}}
        return ask_chat(model, "ok", tools=tools, tool_choice=choice)

    status, few = allowed("get_time", "auto")
    _, all_of_them = ask_chat(model, "ok", tools=tools)
    assert status == 200
    assert few["usage"]["prompt_tokens"] < all_of_them["usage"]["prompt_tokens"]  # the model sees one
    status, body = allowed("get_rain", "auto")
    assert (status, body["error"]["param"]) == (400, "tool_choice")


@FORMATS
def test_an_object_may_have_a_schema(model: Path):
    wanted = {"type": "json_object", "schema": {"const": {"a": 1}}}
    _, body = ask_chat(model, "json", response_format=wanted)
    assert msgspec.json.decode(body["choices"][0]["message"]["content"]) == {"a": 1}
