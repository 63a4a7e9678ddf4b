"""The application over replicas, asked by HTTP: what clients see when replicas are lost, busy, or not there."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from local_links import UNASKED, LocalReplicas, model_of, replica_of, settings_of
from scripted_model import write_embedder, write_scripted_model
from serving import chunks_of

from backbay_engine import LLM
from backbay_engine.remote import Question
from backbay_ray.replica import Replica
from backbay_server.generation.generator import THREADS
from backbay_server.remote import build_application


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.fixture(scope="module")
def replicas(path: Path) -> tuple[Replica, Replica]:
    return replica_of(path), replica_of(path)


@asynccontextmanager
async def client_over(path: Path, link: LocalReplicas) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application whose engines are these replicas."""
    loop = asyncio.get_running_loop()

    def load(entry: Any, progress: Any, cancel: Any) -> LLM:
        return model_of(link, loop, name=entry.name)

    served = build_application(settings_of(path), load)
    async with served.router.lifespan_context(served):
        transport = httpx.ASGITransport(served)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=300) as client:
            yield client


def ask(path: Path, replicas: Iterable[Replica], where: str, body: dict[str, Any], **link: Any) -> Any:
    """The answer, and what the metrics say then."""
    made = LocalReplicas(replicas, **link)

    async def asking() -> Any:
        async with client_over(path, made) as client:
            found = await client.post(where, json=body)
            return found, (await client.get("/metrics")).text, made

    return asyncio.run(asking())


def chat(script: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"[{script}]"}], **fields}


@pytest.mark.parametrize("cuts", [[UNASKED], [0], [2, 0, 3], [5]])
def test_a_stream_is_undisturbed_and_counted_once(
    path: Path, replicas: tuple[Replica, Replica], cuts: list[int]
):
    body = chat("euro", stream=True, stream_options={"include_usage": True})
    alone, _, _ = ask(path, replicas, "/v1/chat/completions", body)
    found, metrics, _ = ask(path, replicas, "/v1/chat/completions", body, cuts=cuts)
    *chunks, usage, done = chunks_of(found.text)
    *expected, usage_alone, _ = chunks_of(alone.text)
    assert [chunk["choices"] for chunk in chunks] == [chunk["choices"] for chunk in expected]
    assert done == "[DONE]"
    for count in ("prompt_tokens", "completion_tokens"):
        assert usage["usage"][count] == usage_alone["usage"][count]
    assert (
        f'backbay_generated_tokens_total{{model_name="scripted"}} {usage["usage"]["completion_tokens"]:.1f}'
        in metrics
    )
    assert 'backbay_finished_requests_total{model_name="scripted",reason="stop"} 1.0' in metrics


def test_calls_of_tools_are_undisturbed(path: Path, replicas: tuple[Replica, Replica]):
    tool = {"type": "function", "function": {"name": "get_weather"}}
    for cut in range(0, 12, 3):
        found, _, _ = ask(path, replicas, "/v1/chat/completions", chat("weather", tools=[tool]), cuts=[cut])
        [call] = found.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "get_weather", "arguments": '{"city": "K\u00f6ln", "days": 2}'}


@pytest.mark.fault("replicas have no room", "429 with Retry-After, before any byte of an answer")
@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("/v1/chat/completions", chat("hello")),
        ("/v1/chat/completions", chat("hello", stream=True)),
        ("/v1/completions", {"prompt": "[hello]", "stream": True, "echo": True}),
        ("/v1/messages", {"model": "scripted", "max_tokens": 9, **chat("hello", stream=True)}),
        ("/api/chat", {"model": "scripted", **chat("hello")}),
    ],
)
def test_no_room_is_a_429(path: Path, replicas: tuple[Replica, Replica], where: str, body: dict[str, Any]):
    found, metrics, _ = ask(path, replicas, where, body, refusals=[True])
    status = 529 if where == "/v1/messages" else 429
    assert found.status_code == status
    assert found.headers["retry-after"]
    assert f'backbay_refused_requests_total{{status="{status}"}} 1.0' in metrics


def test_an_echo_comes_before_its_answer(path: Path, replicas: tuple[Replica, Replica]):
    body = {"prompt": "[hello]", "echo": True, "max_tokens": 9, "logprobs": 1}
    alone, _, _ = ask(path, replicas, "/v1/completions", body)
    for cuts in ([0], [None, 0], [None, 3]):  # the scores of the prompt are asked for first
        found, _, _ = ask(path, replicas, "/v1/completions", body, cuts=cuts)
        assert found.json()["choices"] == alone.json()["choices"]
    assert alone.json()["choices"][0]["text"] == "[hello]Hello, world!"


def test_the_turns_of_a_conversation_have_one_session(path: Path, replicas: tuple[Replica, Replica]):
    system = {"role": "system", "content": "Be kind."}

    def turns(*said: str) -> list[dict[str, str]]:
        roles = ("user", "assistant")
        return [system, *({"role": roles[n % 2], "content": text} for n, text in enumerate(said))]

    async def asking() -> list[str]:
        link = LocalReplicas(replicas)
        async with client_over(path, link) as client:
            for messages in (turns("a"), turns("a", "ok", "b"), turns("c"), turns("a", "ok", "c", "ok", "d")):
                found = await client.post("/v1/chat/completions", json={"messages": messages})
                found.raise_for_status()
        return link.sessions

    first, second, other, third = asyncio.run(asking())
    assert first == second == third != other


def test_embeddings_come_from_replicas(tmp_path: Path):
    vectors = {"a": [1.0, *[0.0] * 7], "b": [0.0, 1.0, *[0.0] * 6]}
    path = write_embedder(tmp_path / "embedder.gguf", vectors)  # type: ignore[arg-type]
    replica = replica_of(path)
    body = {"input": ["[a]", "[b]"], "encoding_format": "float"}
    found, _, link = ask(path, [replica], "/v1/embeddings", body, cuts=[None])
    alone, _, _ = ask(path, [replica], "/v1/embeddings", body)
    assert found.json()["data"] == alone.json()["data"]
    failed, _, _ = ask(path, [replica], "/v1/embeddings", body, cuts=[0] * 4)
    assert failed.status_code == 500
    again, _, _ = ask(path, [replica], "/v1/embeddings", body, cuts=[0] * 3)
    assert again.json()["data"] == alone.json()["data"]
    assert link.is_idle()


def test_pictures_that_wait_for_a_replica_hold_up_no_text():
    """The tokens of a picture are counted by a replica; the threads that make prompts do not wait for it."""
    models = Path(__file__).parents[3] / "examples" / "models"
    path, released = models / "backbay-tiny-vision-f16.gguf", asyncio.Event()
    file = io.BytesIO()
    pytest.importorskip("PIL.Image").new("RGB", (64, 64)).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    said = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    counted = {"model": path.stem, "messages": said}
    asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}

    class Held(LocalReplicas):
        async def stream(self, message: Any, *, session: str) -> AsyncIterator[list[Any]]:
            if isinstance(message, Question):
                await released.wait()
            async for batch in super().stream(message, session=session):
                yield batch

    async def asking() -> list[str]:
        replica = replica_of(path, context=256)
        async with client_over(path, Held([replica])) as client:
            where = "/v1/messages/count_tokens"
            counts = [asyncio.ensure_future(client.post(where, json=counted)) for _ in range(2 * THREADS)]
            await asyncio.sleep(0.2)
            text = await asyncio.wait_for(client.post("/v1/chat/completions", json=asked), 300)
            assert not any(count.done() for count in counts)
            released.set()
            return [text.text, *(answer.text for answer in await asyncio.gather(*counts))]

    text, *counts = asyncio.run(asking())
    assert '"finish_reason"' in text
    assert {json.loads(count)["input_tokens"] for count in counts} == {json.loads(counts[0])["input_tokens"]}


def test_a_request_that_kills_replicas_is_a_500(path: Path, replicas: tuple[Replica, Replica]):
    found, _, _ = ask(path, replicas, "/v1/chat/completions", chat("hello"), cuts=[0] * 4)
    assert found.status_code == 500
    assert "log says more" in found.json()["error"]["message"]
