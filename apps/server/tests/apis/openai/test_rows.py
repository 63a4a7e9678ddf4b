"""Rows in chat: taken by servers that were told to, and by no others."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import tensors_of
from serving import client_of
from small_llama import write_small_llama

TEXT = "one 23 four"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "text.gguf")


def rows_part(array: np.ndarray[Any, Any], **changed: Any) -> dict[str, Any]:
    data = base64.b64encode(array.astype("<f4").tobytes()).decode()
    return {"type": "rows", "rows": data, "width": array.shape[1], **changed}


def asked(path: Path, content: Any, where: str = "/v1/chat/completions", **settings: Any) -> tuple[int, Any]:
    async def asking() -> tuple[int, Any]:
        async with client_of(path, context=128, **settings) as client:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 6, "temperature": 0}
            found = await client.post(where, json={"model": "text", **body})
            return found.status_code, found.json()

    return asyncio.run(asking())


def embedded(path: Path) -> list[Any]:
    """The content of a message that says TEXT, a part of it by embeddings."""
    table = tensors_of(path)["token_embd.weight"]
    return [
        {"type": "text", "text": "one "},
        rows_part(table[[ord("2"), ord("3")]]),
        {"type": "text", "text": " four"},
    ]


@pytest.mark.parametrize("settings", [{}, {"worker": True}], ids=["here", "in a worker"])
def test_a_server_that_was_told_to_takes_rows(path: Path, settings: dict[str, Any]) -> None:
    status, found = asked(path, embedded(path), allow_rows=True, **settings)
    expected = asked(path, TEXT)[1]
    assert status == 200
    assert found["choices"][0]["message"]["content"] == expected["choices"][0]["message"]["content"]
    assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_no_other_server_does(path: Path) -> None:
    status, body = asked(path, embedded(path))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "it was started without --allow-rows" in body["error"]["message"]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (rows_part(np.zeros((2, 31))), "rows have 31 features"),
        (rows_part(np.full((2, 32), np.nan)), "must be finite"),
        (rows_part(np.zeros((2, 32)), width=33), "256 bytes, which are no whole rows of 33"),
        (rows_part(np.zeros((2, 32)), width=0), "no whole rows of 0"),
        (rows_part(np.zeros((0, 32))), "0 bytes, which are no whole rows of 32"),
        (rows_part(np.zeros((2, 32)), rows="%%"), "must be base64"),
        (rows_part(np.zeros((2, 32)), rows="\u00e9"), "must be base64"),
        ({"type": "rows", "rows": [[0.0] * 32], "width": 32}, "Expected `str`"),
        ({"type": "rows", "rows": "AAAA"}, "width"),
        (rows_part(np.zeros((200, 32))), "maximum context length"),
    ],
)
def test_what_are_no_rows_is_a_400(path: Path, part: dict[str, Any], reason: str) -> None:
    status, body = asked(path, [part, {"type": "text", "text": "?"}], allow_rows=True)
    assert status == 400
    assert reason in str(body["error"]["message"]), body
