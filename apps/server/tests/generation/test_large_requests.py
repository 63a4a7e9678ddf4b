"""Requests of megabytes: what no context holds is counted, and nothing is made of it; nobody waits for the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from asking import ask
from patience import wait_until
from scripted_model import write_scripted_model
from serving import Served, begun, client_of, serving

from backbay_engine.text.chat import ChatTemplate
from backbay_engine.text.tokenizers import Tokenizer
from backbay_server.apis.openai import conversations
from backbay_server.generation.prompt_size import COUNTED

SAID = {"role": "user", "content": "x"}
CONTEXT = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The prompts that are rendered, or cut into tokens, from now on."""
    noted: list[str] = []
    for kind, name in ((ChatTemplate, "render"), (Tokenizer, "encode")):
        real = getattr(kind, name)

        def note(self: Any, *given: Any, _real: Any = real, **more: Any) -> Any:
            noted.append(str(given[0])[:40])
            return _real(self, *given, **more)

        monkeypatch.setattr(kind, name, note)
    return noted


@pytest.mark.fault(
    "a request has more messages, or parts of them, than the context has tokens", "400 before any work"
)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [SAID] * (CONTEXT + 1)}),
        (
            "/v1/chat/completions",
            {"messages": [{**SAID, "content": [{"type": "text", "text": "x"}] * (CONTEXT + 1)}]},
        ),
        ("/v1/responses", {"input": [SAID] * (CONTEXT + 1)}),
        ("/v1/messages", {"max_tokens": 1, "messages": [SAID] * (CONTEXT + 1)}),
        ("/v1/messages/count_tokens", {"messages": [SAID] * (COUNTED + 1)}),
        ("/api/chat", {"stream": False, "messages": [SAID] * (CONTEXT + 1)}),
        ("/apply-template", {"messages": [SAID] * (COUNTED + 1)}),
    ],
)
def test_more_messages_than_tokens_are_counted_alone(
    model: Path, path: str, body: dict[str, Any], work: list[str]
) -> None:
    status, found = ask(model, path, {"model": "scripted", **body}, context=CONTEXT)
    assert status == 400
    told = found["error"] if isinstance(found["error"], str) else found["error"]["message"]
    assert told.startswith(f"This model's maximum context length is {CONTEXT} tokens")
    assert not work


@pytest.mark.fault(
    "a tool's schema, or a variable of a template, has millions of numbers or keys", "413 before any work"
)
@pytest.mark.parametrize(
    "large",
    [
        {"enum": [1] * (1 << 21)},
        {f"{number:x}" * 4: 1 for number in range(1 << 16)},
        {"image_url": "x" * (1 << 21)},
    ],
)
def test_numbers_and_keys_count_as_text(model: Path, large: Any, work: list[str]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": large}}]
    for more in ({"tools": tools}, {"chat_template_kwargs": large}):
        status, _ = ask(model, "/v1/chat/completions", {"model": "scripted", "messages": [SAID], **more})
        assert status == 413
    assert not work


def test_arguments_of_a_call_count_whatever_they_are_named(model: Path, work: list[str]) -> None:
    function = {"name": "f", "arguments": msgspec.json.encode({"image_url": "x" * (1 << 21)}).decode()}
    called = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    status, _ = ask(model, "/v1/chat/completions", {"model": "scripted", "messages": [SAID, called]})
    assert status == 413
    assert not work


def test_as_many_ids_as_letters_may_come(model: Path) -> None:
    status, found = ask(model, "/v1/completions", {"model": "scripted", "prompt": [97] * 600_000})
    assert (status, found["error"]["code"]) == (400, "context_length_exceeded")


def test_biases_of_many_texts_wait_in_the_lane_of_long_prompts(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, real = set[str](), Tokenizer.encode

    def noted(self: Tokenizer, *given: Any, **more: Any) -> Any:
        threads.add(threading.current_thread().name)
        return real(self, *given, **more)

    monkeypatch.setattr(Tokenizer, "encode", noted)
    biases = {f"some text {number}": 1 for number in range(8000)}
    ask(model, "/v1/completions", {"model": "scripted", "prompt": "x", "logit_bias": biases, "max_tokens": 1})
    assert {name.rpartition("_")[0] for name in threads} == {"backbay long prompt"}


def test_a_conversation_is_counted_though_it_fits_no_context(model: Path) -> None:
    body = {"model": "scripted", "messages": [SAID] * (CONTEXT + 1)}
    status, found = ask(model, "/v1/messages/count_tokens", body, context=CONTEXT)
    assert (status, found["input_tokens"] > CONTEXT) == (200, True)


def test_a_long_body_is_converted_beside_the_event_loop(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, real = list[threading.Thread](), conversations.template_messages

    def noted(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return real(*given)

    async def asking() -> None:
        async with client_of(model, context=CONTEXT) as client:
            for count in (1, 10_000):
                body = {"model": "scripted", "messages": [SAID] * count}
                await client.post("/v1/chat/completions", json=body)

    monkeypatch.setattr(conversations, "template_messages", noted)
    asyncio.run(asking())
    short, long = threads
    assert short is threading.current_thread()
    assert long is not short


# -- a long prompt that fits the limits, and takes its time ------------------------------------------------


@pytest.fixture
def served(model: Path) -> Iterator[Served]:
    with serving(model, context=1 << 12) as server:
        yield server


@pytest.mark.fault(
    "clients send prompts of 100,000 letters, and leave", "others are answered; one prompt is made at most"
)
def test_long_prompts_keep_nobody_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real, gate = list[int](), ChatTemplate.render, threading.Event()

    def render(self: ChatTemplate, messages: Any, **more: Any) -> str:
        if len(messages[0]["content"]) > 1000:
            made.append(len(messages))
            assert gate.wait(300)
        return real(self, messages, **more)

    monkeypatch.setattr(ChatTemplate, "render", render)
    long = {"model": "scripted", "messages": [{**SAID, "content": "word and " * 11_000}]}
    waiting = [begun(served, long) for _ in range(6)]
    try:
        wait_until(lambda: made and served.application.state.drain.running == 6)
        assert chat(served, {"model": "scripted", "messages": [{**SAID, "content": "[hello]"}]}) == 200
        for each in waiting:
            each.close()
        wait_until(lambda: served.application.state.drain.running == 0)
    finally:
        gate.set()
    assert chat(served, long) == 400  # longer than the context
    assert len(made) == 2  # the first one, and the one that somebody waited for


def chat(served: Served, body: dict[str, Any]) -> int:
    content = msgspec.json.encode(body)
    return httpx.post(f"{served.url}/v1/chat/completions", content=content, timeout=300).status_code
