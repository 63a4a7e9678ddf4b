"""Clients that leave: their requests end, and nobody else notices."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from patience import wait_until
from scripted_model import CONTEXT, SCRIPTS, write_scripted_model
from serving import Served, begun, serving


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")
    with serving(model, parallel=1, context=CONTEXT) as server:
        httpx.post(
            f"{server.url}/v1/chat/completions", json=body("ok"), timeout=300
        ).raise_for_status()  # loads it
        yield server


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """The server; no answer comes to its end by itself."""
    before = shared.model("scripted").state().totals.generated
    yield shared
    assert shared.model("scripted").state().totals.generated - before < CONTEXT // 2


def body(script: str, **fields: object) -> dict[str, object]:
    return {"model": "scripted", "messages": [{"role": "user", "content": f"[{script}]"}], **fields}


@pytest.mark.fault("a client leaves in mid-answer", "its slot is free after one step")
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(served: Served, stream: bool):
    connection = begun(served, body("endless", stream=stream))
    wait_until(lambda: served.busy("scripted") == 1)
    if stream:
        assert connection.recv(1)
    connection.close()
    wait_until(lambda: served.busy("scripted") == 0)


def test_a_waiting_request_leaves_the_queue_with_its_client(served: Served):
    first = begun(served, body("endless"))
    wait_until(lambda: served.busy("scripted") == 1)
    waiting = begun(served, body("endless"))
    wait_until(lambda: served.busy("scripted") == 2)
    waiting.close()
    wait_until(lambda: served.busy("scripted") == 1)
    first.close()
    wait_until(lambda: served.busy("scripted") == 0)


def test_all_choices_end_with_the_client(served: Served):
    connection = begun(served, body("endless", n=4))
    wait_until(lambda: served.busy("scripted") == 4)
    connection.close()
    wait_until(lambda: served.busy("scripted") == 0)


@pytest.mark.fault("a client sends many requests at once on a connection, and leaves", "all of them end")
def test_pipelined_requests_end_with_the_client(served: Served):
    connection = begun(served, body("endless", stream=True))
    for _ in range(50):
        content = msgspec.json.encode(body("endless", stream=True))
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
    wait_until(lambda: served.busy("scripted") == 1)
    connection.close()
    wait_until(lambda: served.busy("scripted") == 0)


@pytest.mark.fault("a client closes its half of a connection in mid-answer", "it has left: its slot is free")
def test_half_a_connection_is_none(served: Served):
    connection = begun(served, body("endless", stream=True))
    wait_until(lambda: served.busy("scripted") == 1)
    connection.shutdown(socket.SHUT_WR)
    wait_until(lambda: served.busy("scripted") == 0)
    connection.close()


def test_scoring_a_prompt_ends_with_the_client(shared: Served, monkeypatch: pytest.MonkeyPatch):
    cache, computed = shared.model("scripted").step_cache, list[int]()
    run = cache.run

    def noted(step: Any, *rest: Any) -> Any:
        computed.append(step.size)
        return run(step, *rest)

    monkeypatch.setattr(cache, "run", noted)
    sent = {"prompt": "x" * 30_000, "echo": True, "logprobs": 20, "max_tokens": 0}
    connections = [begun(shared, sent, "/v1/completions") for _ in range(8)]
    wait_until(lambda: shared.busy("scripted") > 0)
    for connection in connections:
        connection.close()
    wait_until(lambda: shared.busy("scripted") == 0)
    assert 0 < sum(computed) < 4 * 30_000  # of eight


def test_prompts_are_made_while_others_wait_for_scores(tmp_path: Path):
    with serving(write_scripted_model(tmp_path / "scripted.gguf"), parallel=1, context=CONTEXT) as served:
        httpx.post(f"{served.url}/v1/chat/completions", json=body("ok"), timeout=300).raise_for_status()
        first = begun(served, body("endless"))
        wait_until(lambda: served.busy("scripted") == 1)
        sent = {"prompt": "x", "echo": True, "logprobs": 0, "max_tokens": 0}
        held = [begun(served, sent, "/v1/completions") for _ in range(8)]
        wrong = httpx.post(f"{served.url}/v1/chat/completions", json=body("x" * 40_000), timeout=300)
        assert wrong.json()["error"]["code"] == "context_length_exceeded"
        for connection in (*held, first):
            connection.close()
        wait_until(lambda: served.busy("scripted") == 0)


def test_others_are_not_disturbed(tmp_path: Path):
    with serving(write_scripted_model(tmp_path / "scripted.gguf"), parallel=4) as served:
        answers = []

        def ask() -> None:
            found = httpx.post(f"{served.url}/v1/chat/completions", json=body("count"), timeout=300)
            answers.append(found.json()["choices"][0]["message"]["content"])

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
            begun(served, body("endless", stream=True)).close()
        for thread in threads:
            thread.join()
        assert answers == [SCRIPTS["count"].text] * 8
        wait_until(lambda: served.busy("scripted") == 0)


@pytest.mark.fault("more requests than may wait", "429 with Retry-After; the others go on")
def test_a_full_queue_is_a_429(tmp_path: Path):
    model = write_scripted_model(tmp_path / "scripted.gguf")
    with serving(model, parallel=1, queue=1, context=CONTEXT) as served:
        httpx.post(f"{served.url}/v1/chat/completions", json=body("ok"), timeout=300).raise_for_status()
        held = [begun(served, body("endless")) for _ in range(2)]
        wait_until(lambda: served.busy("scripted") == 2)
        found = httpx.post(f"{served.url}/v1/chat/completions", json=body("ok", stream=True), timeout=300)
        assert found.status_code == 429
        assert found.headers["retry-after"] == "1"
        assert found.json()["error"]["code"] == "rate_limit_exceeded"
        for connection in held:
            connection.close()
        wait_until(lambda: served.busy("scripted") == 0)


@pytest.mark.fault(
    "the model gives no numbers in mid-stream", "one error event, then the end, without [DONE]"
)
def test_a_fault_in_mid_stream_is_told_once(served: Served):
    found = httpx.post(f"{served.url}/v1/chat/completions", json=body("faulty", stream=True), timeout=300)
    events = found.text.split("\n\n")[:-1]
    assert found.status_code == 200
    assert "so" in events[1]
    assert events[-1].startswith('data: {"error":{')
    assert [event for event in events if "error" in event] == events[-1:]


@pytest.mark.fault("the model gives no numbers before the first byte", "500 server_error")
def test_a_fault_before_the_answer_is_a_500(served: Served):
    found = httpx.post(f"{served.url}/v1/chat/completions", json=body("faulty"), timeout=300)
    assert (found.status_code, found.json()["error"]["type"]) == (500, "server_error")
