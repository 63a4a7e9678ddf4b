"""What clients do when the server has no room: they try again by themselves, and then say what it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from patience import wait_until
from serving import Served, serving

SAY: list[Any] = [{"role": "user", "content": "Say [hello]"}]


@pytest.fixture
def full(models: list[Path]) -> Iterator[tuple[Served, Any]]:
    """A server of one slot, without a queue, and the stream that holds the slot."""
    with (
        serving(models[0], parallel=1, queue=0, context=1 << 15) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        client.completions.create(
            model="scripted", prompt="[endless]", max_tokens=32_000, stream=True
        ) as stream,
    ):
        next(iter(stream))
        yield server, stream


@pytest.mark.fault(
    "a request comes while the queue is full", "429 with Retry-After (529 for Anthropic's clients)"
)
def test_a_full_queue_is_an_exception_of_its_own_class(full: tuple[Served, Any]) -> None:
    server, _ = full
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as refused,
    ):
        client.chat.completions.create(model="scripted", messages=SAY, stream=True)
    assert refused.value.code == "rate_limit_exceeded"
    assert int(refused.value.response.headers["retry-after"]) > 0
    with (
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as other,
        pytest.raises(anthropic.APIStatusError) as overloaded,
    ):
        other.messages.create(model="scripted", messages=SAY, max_tokens=5)
    assert overloaded.value.status_code == 529
    assert overloaded.value.type == "overloaded_error"


def test_clients_try_again_until_there_is_room(full: tuple[Served, Any]) -> None:
    server, stream = full
    refused = list[int]()

    def make_room(answer: httpx.Response) -> None:
        if answer.status_code == 429:
            refused.append(answer.status_code)
            stream.close()

    with (
        openai.DefaultHttpxClient(event_hooks={"response": [make_room]}) as http,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=300, http_client=http
        ) as client,
    ):
        answer = client.chat.completions.create(model="scripted", messages=SAY, temperature=0)
    assert answer.choices[0].message.content == "Hello, world!"
    assert refused
    wait_until(lambda: not server.busy("scripted"))
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=5) as other:
        message = other.messages.create(model="scripted", messages=SAY, max_tokens=50)
    assert message.stop_reason == "end_turn"
