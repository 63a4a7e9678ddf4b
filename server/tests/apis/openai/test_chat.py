"""Chat completions, over the scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted_model import write_scripted_model
from serving import chunks_of, client_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


def ask(file: Path, script: str, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    """The status and the body of the answer to a message that names a script; the chunks if it is streamed."""
    body = {"model": "scripted", "messages": [{"role": "user", "content": f"[{script}]"}], **fields}

    async def asking() -> Any:
        async with client_of(file) as client:
            found = await client.post(path, json=body)
            streamed = found.headers["content-type"].startswith("text/event-stream")
            return found.status_code, chunks_of(found.text) if streamed else found.json()

    return asyncio.run(asking())


def test_an_answer_is_whole(model: Path):
    status, body = ask(model, "hello")
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
    status, chunks = ask(model, "hello", stream=True, stream_options={"include_usage": True})
    assert status == 200
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    assert chunks[-2]["usage"]["completion_tokens"] == 5
    told = [chunk["choices"][0] for chunk in chunks[:-2]]
    assert told[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in told) == "Hello, world!"
    assert [choice["finish_reason"] for choice in told[-2:]] == [None, "stop"]


def test_an_unknown_model_is_a_404(model: Path):
    status, body = ask(model, "hello", model="other")
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
    status, body = ask(model, "hello", **fields)
    assert (status, body["error"]["type"], body["error"]["param"]) == (400, "invalid_request_error", param)
