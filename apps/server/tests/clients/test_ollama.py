"""Ollama's client over a socket: answers, lists, embeddings, and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import ollama
import pytest
from patience import wait_until
from scripted_model import SCRIPTS
from serving import Served

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(server: Served, key: str) -> Iterator[Any]:
    with ollama.Client(host=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=300) as client:
        yield client


def say(name: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Say [{name}]"}]


def test_models_are_listed_and_shown(client: Any) -> None:
    models = client.list().models
    assert {model.model for model in models} == {"scripted", "vectors", "scores"}
    assert all(model.size > 0 and model.modified_at is not None and model.digest for model in models)
    shown = client.show("scripted")
    assert shown.details.family == "llama"
    assert shown.details.format == "gguf"
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 1 << 15
    assert {"completion", "tools"} <= set(shown.capabilities)
    assert "endless" in shown.template
    assert client.show("vectors").capabilities == ["embedding"]


def test_a_model_that_is_there_needs_no_pull(client: Any) -> None:
    assert client.pull("scripted").status == "success"
    assert [step.status for step in client.pull("scripted:latest", stream=True)][-1] == "success"
    with pytest.raises(ollama.ResponseError) as caught:
        client.pull("other")
    assert caught.value.status_code == 404


@pytest.mark.parametrize("name", ["scripted", "scripted:latest"])
def test_a_chat_is_answered_whole_and_streamed(client: Any, name: str) -> None:
    for script in ("hello", "euro", "quiet"):
        answer = client.chat(name, say(script), options=GREEDY)
        assert (answer.message.role, answer.message.content) == ("assistant", SCRIPTS[script].text)
        assert (answer.done, answer.done_reason) == (True, "stop")
        assert answer.eval_count == len(SCRIPTS[script].steps) + 1
        assert answer.prompt_eval_count > 0
        assert answer.total_duration > 0
        pieces = list(client.chat(name, say(script), options=GREEDY, stream=True))
        assert "".join(piece.message.content for piece in pieces) == SCRIPTS[script].text
        assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert pieces[-1].eval_count == answer.eval_count


def test_a_tool_is_called_and_its_result_read(client: Any) -> None:
    for stream in (False, True):
        given = client.chat("scripted", say("both"), tools=TOOLS, options=GREEDY, stream=stream)
        answers = list(given) if stream else [given]
        calls = [call for answer in answers for call in answer.message.tool_calls or []]
        assert [(call.function.name, dict(call.function.arguments)) for call in calls] == [
            ("get_weather", {"city": "Paris", "days": 1}),
            ("get_time", {"zone": "CET"}),
        ]
    messages = [*say("weather"), {"role": "assistant", "content": "", "tool_calls": calls}]
    messages.append({"role": "tool", "tool_name": "get_weather", "content": "sunny"})
    answer = client.chat("scripted", messages, tools=TOOLS, options=GREEDY)
    assert answer.message.content == "It is sunny."


def test_reasoning_is_apart_from_the_answer(client: Any) -> None:
    message = client.chat("scripted", say("think"), options=GREEDY).message
    assert (message.thinking.strip(), message.content) == ("Hm.", "Yes.")


def test_a_prompt_is_answered_formatted_and_raw(client: Any) -> None:
    for raw in (False, True):
        answer = client.generate("scripted", "Say [hello]", raw=raw, options=GREEDY)
        assert (answer.response, answer.done, answer.done_reason) == ("Hello, world!", True, "stop")
        pieces = list(client.generate("scripted", "Say [count]", raw=raw, options=GREEDY, stream=True))
        assert "".join(piece.response for piece in pieces) == SCRIPTS["count"].text


def test_options_are_taken(client: Any) -> None:
    answer = client.generate("scripted", "[endless]", options={**GREEDY, "num_predict": 3})
    assert (answer.response, answer.done_reason) == ("la lala", "length")
    answer = client.generate("scripted", "[stops]", options={**GREEDY, "stop": ["STOP"], "num_ctx": 99})
    assert answer.response == "one "


@pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
def test_an_answer_obeys_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"answer": {"enum": [41]}}, "required": ["answer"]}
    schema["additionalProperties"] = False
    for form, expected in ((schema, 41), ("json", 42)):
        message = client.chat("scripted", say("json"), format=form, options=GREEDY).message
        assert json.loads(message.content) == {"answer": expected}


def test_logprobs_are_those_of_the_script(client: Any) -> None:
    answer = client.generate("scripted", "[coin]", options=GREEDY, logprobs=True, top_logprobs=2)
    assert answer.logprobs[0].token == "heads"
    assert answer.logprobs[0].logprob == pytest.approx(math.log(0.75), abs=1e-3)
    assert [top.token for top in answer.logprobs[0].top_logprobs] == ["heads", "tails"]


def test_a_model_is_loaded_by_an_empty_request_and_then_listed(client: Any) -> None:
    assert client.generate("scripted").done_reason == "load"
    assert client.chat("scripted", []).done_reason == "load"
    [running] = [model for model in client.ps().models if model.model == "scripted"]
    assert running.size > 0
    assert running.context_length == 512


def test_texts_are_embedded(client: Any) -> None:
    found = client.embed("vectors", ["[north]", "[north][east]"])
    np.testing.assert_allclose(found.embeddings, [[1] + [0] * 7, [0.5**0.5] * 2 + [0] * 6], atol=1e-5)
    assert found.prompt_eval_count == 3
    np.testing.assert_allclose(client.embeddings("vectors", "[east]").embedding, [0, 1] + [0] * 6, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "more", "status"),
    [
        ("nothing", {}, 404),
        ("vectors", {}, 400),
        ("scripted", {"format": {"type": "nothing"}}, 400),
        ("scripted", {"options": {"mirostat": 1}}, 400),
        ("scripted", {"messages": say("a" * 1000)}, 400),
    ],
)
def test_a_bad_request_is_a_response_error(
    client: Any, model: str, more: dict[str, Any], status: int
) -> None:
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError) as caught:
            list(client.chat(**{"model": model, "messages": say("hello"), **more}, stream=stream))
        assert caught.value.status_code == status
        assert caught.value.error


def test_a_fault_in_the_midst_of_a_stream_is_a_response_error(client: Any) -> None:
    pieces: list[Any] = []
    with pytest.raises(ollama.ResponseError):
        pieces.extend(client.generate("scripted", "[faulty]", options=GREEDY, stream=True))
    assert "".join(piece.response for piece in pieces) == "so far"


def test_a_stream_that_is_left_frees_its_slot(client: Any, server: Served) -> None:
    for _ in range(6):
        pieces = client.generate("scripted", "[endless]", stream=True)
        next(pieces)
        pieces.close()
    wait_until(lambda: not server.busy("scripted"))
