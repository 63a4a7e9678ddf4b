"""Anthropic's SDK over a socket: messages, whole and streamed, tools, counts, and the exception of each fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from patience import wait_until
from scripted_model import SCRIPTS
from serving import Served

FORMATS = pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
TOOLS: list[Any] = [
    {
        "name": "get_weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
    {"name": "get_time", "input_schema": {"type": "object"}},
]


@pytest.fixture(scope="module")
def client(server: Served, key: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=300) as client:
        yield client


def asked(name: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"Say [{name}]"}]
    greedy = {"temperature": 0}  # the SDK no longer has the field; older ones send it
    return {"model": "scripted", "max_tokens": 100, "messages": messages, "extra_body": greedy, **more}


@pytest.mark.parametrize("name", ["ok", "hello", "count", "euro", "half", "almost", "json"])
def test_a_message_is_answered_whole_and_streamed(client: Anthropic, name: str) -> None:
    message = client.messages.create(**asked(name))
    assert (message.type, message.role, message.model) == ("message", "assistant", "scripted")
    assert [(block.type, block.text) for block in message.content] == [("text", SCRIPTS[name].text)]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len(SCRIPTS[name].steps) + 1
    cached = message.usage.cache_read_input_tokens or 0
    with client.messages.stream(**asked(name)) as stream:
        assert "".join(stream.text_stream) == SCRIPTS[name].text
        final = stream.get_final_message()
    assert [(block.type, block.text) for block in final.content] == [("text", SCRIPTS[name].text)]
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == message.usage.output_tokens
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert total == message.usage.input_tokens + cached


def test_models_are_listed(client: Anthropic) -> None:
    assert {model.id for model in client.models.list()} == {"scripted", "vectors", "scores"}


def test_events_come_in_anthropics_order(client: Anthropic) -> None:
    kinds = [event.type for event in client.messages.create(**asked("hello"), stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-4:] == ["content_block_delta", "content_block_stop", "message_delta", "message_stop"]
    assert [kind for kind in kinds if kind != "ping"][1] == "content_block_start"


def test_an_answer_without_text_has_no_content(client: Anthropic) -> None:
    assert client.messages.create(**asked("quiet")).content == []
    with client.messages.stream(**asked("quiet")) as stream:
        assert stream.get_final_message().content == []


def test_stop_sequences_are_named(client: Anthropic) -> None:
    message = client.messages.create(**asked("stops", stop_sequences=["END", "STOP"]))
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    assert message.content[0].text == "one "
    with client.messages.stream(**asked("stops", stop_sequences=["STOP"])) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "STOP")


def test_an_endless_answer_ends_with_its_length(client: Anthropic) -> None:
    message = client.messages.create(**asked("endless", max_tokens=5))
    assert (message.stop_reason, message.content[0].text) == ("max_tokens", "la lala lala")


def test_a_system_prompt_and_parts_are_taken(client: Anthropic) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "[hello]"}]},
    ]
    for system in (
        "Be brief.",
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    ):
        message = client.messages.create(**asked("ok") | {"messages": messages, "system": system})
        assert message.content[0].text == "Hello, world!"


def test_a_tool_is_called_and_its_result_read(client: Anthropic) -> None:
    message = client.messages.create(**asked("weather", tools=TOOLS))
    assert message.stop_reason == "tool_use"
    [block] = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "get_weather", {"city": "Köln", "days": 2})
    messages = [
        {"role": "user", "content": "Say [weather]"},
        {"role": "assistant", "content": message.content},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}],
        },
    ]
    answer = client.messages.create(**asked("ok") | {"messages": messages, "tools": TOOLS})
    assert answer.content[0].text == "It is sunny."


@FORMATS
def test_a_call_can_be_demanded(client: Anthropic) -> None:
    properties = {"zone": {"enum": ["UTC"]}}
    schema = {"type": "object", "properties": properties, "required": ["zone"], "additionalProperties": False}
    tools = [*TOOLS, {"name": "set_zone", "input_schema": schema}]
    choice = {"type": "tool", "name": "set_zone"}
    for stream in (False, True):
        given = asked("hello", tools=tools, tool_choice=choice)
        if stream:
            with client.messages.stream(**given) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**given)
        [block] = message.content
        assert (block.type, block.name, block.input) == ("tool_use", "set_zone", {"zone": "UTC"})
        assert message.stop_reason == "tool_use"


@FORMATS
def test_an_answer_obeys_a_schema(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {"answer": {"enum": [41]}}, "required": ["answer"]}
    schema["additionalProperties"] = False
    config = {"format": {"type": "json_schema", "schema": schema}}
    [block] = client.messages.create(**asked("json", output_config=config)).content
    assert json.loads(block.text) == {"answer": 41}


def test_only_the_first_of_parallel_calls_is_given_if_asked(client: Anthropic) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = client.messages.create(**asked("both", tools=TOOLS, tool_choice=choice))
    assert [block.name for block in message.content] == ["get_weather"]


def test_calls_are_streamed_as_blocks(client: Anthropic) -> None:
    with client.messages.stream(**asked("both", tools=TOOLS)) as stream:
        deltas = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert [(block.type, block.name, block.input) for block in final.content] == [
        ("tool_use", "get_weather", {"city": "Paris", "days": 1}),
        ("tool_use", "get_time", {"zone": "CET"}),
    ]
    assert len(deltas) > 4  # arguments come as they grow
    assert final.stop_reason == "tool_use"
    with client.messages.stream(**asked("talk_and_call", tools=TOOLS)) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[0].text == "I will look."


def test_reasoning_is_a_block_of_its_own(client: Anthropic) -> None:
    message = client.messages.create(**asked("think"))
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.content[0].thinking.strip() == "Hm."
    assert message.content[1].text == "Yes."
    with client.messages.stream(**asked("think")) as stream:
        assert [block.type for block in stream.get_final_message().content] == ["thinking", "text"]


def test_tokens_are_counted_without_an_answer(client: Anthropic) -> None:
    given = asked("hello", system="Be brief.", tools=TOOLS)
    given.pop("max_tokens")
    given.pop("extra_body")
    counted = client.messages.count_tokens(**given).input_tokens
    usage = client.messages.create(**given, max_tokens=5).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


FAULTS: dict[str, tuple[dict[str, Any], type[anthropic.APIStatusError], str]] = {
    "an unknown model": ({"model": "claude-9"}, anthropic.NotFoundError, "not_found_error"),
    "no messages": ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
    "no tokens": ({"max_tokens": 0}, anthropic.BadRequestError, "invalid_request_error"),
    "too high a temperature": (
        {"extra_body": {"temperature": 1.5}},
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
    "an unknown part": (
        {"messages": [{"role": "user", "content": [{"type": "song"}]}]},
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "a" * 1000}]},
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
    "a tool that is not there": (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "nothing"}},
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
    "a server's tool": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        anthropic.BadRequestError,
        "invalid_request_error",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_an_exception_of_its_own_class(client: Anthropic, name: str, stream: bool) -> None:
    more, kind, type_ = FAULTS[name]
    with pytest.raises(kind) as caught:
        client.messages.create(**{**asked("hello"), **more}, stream=stream)
    body: Any = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == type_
    assert body["error"]["message"]


def test_a_wrong_key_is_an_authentication_error(server: Served) -> None:
    with (
        Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError) as caught,
    ):
        client.messages.create(**asked("hello"))
    body: Any = caught.value.body
    assert body["error"]["type"] == "authentication_error"


def test_a_fault_in_the_midst_of_a_stream_is_an_error_event(client: Anthropic) -> None:
    texts: list[str] = []
    with (
        client.messages.stream(**asked("faulty")) as stream,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        texts.extend(stream.text_stream)
    assert "".join(texts) == "so far"
    body: Any = caught.value.body
    assert body["error"]["type"] == "api_error"
    with pytest.raises(anthropic.InternalServerError):
        client.messages.create(**asked("faulty"))


def test_a_stream_that_is_left_frees_its_slot(client: Anthropic, server: Served) -> None:
    for _ in range(6):
        with client.messages.create(**asked("endless", max_tokens=400), stream=True) as stream:
            next(iter(stream))
    wait_until(lambda: not server.busy("scripted"))
