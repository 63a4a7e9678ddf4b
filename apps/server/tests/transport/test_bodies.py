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


@pytest.mark.fault("a text has half a surrogate pair, as JavaScript cuts an emoji", "U+FFFD stands for it")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"\ud83d", "\ufffd"),
        (r"\uDE00 a", "\ufffd a"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (r"\\\ud83d", "\\\ufffd"),
        (r"\ud83d\\ude00", "\ufffd\\ude00"),
    ],
)
def test_half_a_character_is_replaced(model: Path, written: str, meant: str):
    async def asking() -> None:
        async with client_of(model) as client:
            found = await client.post("/tokenize", content=f'{{"content": "{written}"}}'.encode())
            assert found.status_code == 200, found.text
            text = await client.post("/detokenize", json=found.json())
            assert text.json()["content"] == meant
            called = {"name": "f", "arguments": f'{{"a": "{written}"}}'}
            call = {"id": "1", "type": "function", "function": called}
            messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "[ok]"}]
            found = await client.post("/v1/chat/completions", json={"messages": messages})
            assert found.status_code == 200, found.text

    asyncio.run(asking())


@pytest.mark.parametrize(
    "content", [rb'{"content": "\ud83d', rb'{"content": "' + rb"\\" * (1 << 18) + rb'\ud83d"}']
)
def test_what_is_no_json_is_a_400_with_half_a_character_too(model: Path, content: bytes):
    async def asking() -> None:
        async with client_of(model) as client:
            assert (await client.post("/tokenize", content=content)).status_code == 400

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
