"""Bodies: whatever bytes a client sends, the answer is a 400 that says what is wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from scripted_model import write_scripted_model
from serving import client_of

BODIES = {
    "nothing": b"",
    "no JSON": b"hello",
    "half of it": b'{"prompt": "x"',
    "another type": b"[]",
    "no Unicode": b'{"prompt": "\xff\xfe"}',
    "half a character": b'{"prompt": "\\ud800"}',
    "two values": b'{"prompt": "x"} {}',
    "not a number": b'{"prompt": "x", "temperature": NaN}',
    "an infinite number": b'{"prompt": "x", "temperature": 1e999}',
    "a large number": b'{"prompt": "x", "seed": ' + b"9" * 400 + b"}",
    "a large token": b'{"prompt": [' + b"9" * 30 + b"]}",
    "nested deeply": b'{"prompt": "x", "metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "a missing field": b"{}",
    "an unknown field": b'{"prompt": "x", "promt": "x"}',
    "a large bias": b'{"prompt": "x", "logit_bias": {"99999999999999999999": 1}}',
    "an endless stop": b'{"prompt": "x", "stop": "' + b"x" * 5000 + b'"}',
    "many stops": b'{"prompt": "x", "stop": [' + b",".join([b'"x"'] * 100) + b"]}",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.mark.fault("a request whose body is damaged, or nested too deeply", "400 that says what is wrong")
def test_a_wrong_body_is_a_400(model: Path):
    async def asking() -> None:
        async with client_of(model) as client:
            for what, content in BODIES.items():
                found = await client.post("/v1/completions", content=content)
                error = found.json()["error"]
                assert (found.status_code, error["type"]) == (400, "invalid_request_error"), (what, error)
                assert error["message"], what

    asyncio.run(asking())


def test_an_unknown_field_is_named(model: Path):
    async def asking() -> None:
        async with client_of(model) as client:
            found = await client.post("/v1/completions", content=BODIES["an unknown field"])
            assert found.json()["error"]["message"] == "Unrecognized request argument supplied: promt"

    asyncio.run(asking())


def test_a_long_body_is_read_beside_the_event_loop(model: Path):
    async def asking() -> None:
        async with client_of(model) as client:
            found = await client.post("/v1/completions", json={"prompt": "x" * (1 << 19)})
            assert found.json()["error"]["code"] == "context_length_exceeded"

    asyncio.run(asking())


def test_a_compressed_body_is_refused_by_its_coding(model: Path):
    async def asking() -> None:
        async with client_of(model) as client:
            for coding, status in (("gzip", 400), ("zstd", 400), ("identity", 200)):
                headers = {"content-encoding": coding}
                found = await client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
                assert (found.status_code, coding in found.text) == (status, status == 400)

    asyncio.run(asking())
