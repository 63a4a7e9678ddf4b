"""Responses, over the scripted model, by OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import ask
from scripted_model import SCRIPTS, write_scripted_model
from serving import Served, serving

openai = pytest.importorskip("openai")
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    with serving(model) as server:
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_an_answer_is_whole(client: Any):
    found = client.responses.create(
        model="scripted", input="[hello]", instructions="Be kind.", metadata={"a": "b"}
    )
    assert found.output_text == "Hello, world!"
    assert found.status == "completed"
    assert found.metadata == {"a": "b"}
    assert found.usage.total_tokens == found.usage.input_tokens + found.usage.output_tokens


def test_a_stream_is_typed_and_numbered(client: Any):
    events = list(client.responses.create(model="scripted", input="[hello]", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == events[-1].response.output_text == "Hello, world!"


def test_the_client_collects_a_stream(client: Any):
    with client.responses.stream(model="scripted", input="[both]", tools=[WEATHER]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["function_call", "function_call"]
    assert [item.name for item in final.output] == ["get_weather", "get_time"]


def test_reasoning_is_an_item_of_its_own(client: Any):
    found = client.responses.create(model="scripted", input="[think]")
    assert [item.type for item in found.output] == ["reasoning", "message"]
    assert found.output_text.strip() == "Yes."


def test_a_call_and_its_result_go_back(client: Any):
    first = client.responses.create(model="scripted", input="[weather]", tools=[WEATHER])
    [called] = first.output
    assert called.type == "function_call"
    sent = [
        {"role": "user", "content": "[weather]"},
        *first.model_dump(exclude_none=True)["output"],
        {"type": "function_call_output", "call_id": called.call_id, "output": "sunny"},
    ]
    second = client.responses.create(model="scripted", input=sent, tools=[WEATHER])
    assert second.output_text == SCRIPTS["result"].text


def test_an_answer_obeys_its_schema(client: Any):
    form = {"type": "json_schema", "name": "x", "schema": {"enum": ["yes"]}, "strict": True}
    found = client.responses.create(model="scripted", input="[hello]", text={"format": form}, temperature=0)
    assert found.output_text == '"yes"'
    assert found.text.format.type == "json_schema"


def test_a_short_answer_is_incomplete(client: Any):
    found = client.responses.create(model="scripted", input="[count]", max_output_tokens=2)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_log_probabilities_are_included(client: Any):
    found = client.responses.create(
        model="scripted", input="[hello]", include=["message.output_text.logprobs"], top_logprobs=1
    )
    [part] = found.output[0].content
    assert "".join(each.token for each in part.logprobs) == "Hello, world!"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
            "messages[0].tool_call_id",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
    ],
)
def test_what_is_not_there_is_a_400_that_names_the_field(model: Path, fields: dict[str, Any], param: str):
    status, body = ask(model, "/v1/responses", {"input": "[ok]", **fields})
    assert (status, body["error"]["param"]) == (400, param), body
