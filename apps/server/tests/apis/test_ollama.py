"""Ollama's API without its client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from scripted_model import write_scripted_model
from serving import client_of


def test_a_pull_of_a_model_that_is_there_succeeds(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "scripted.gguf")

    async def asking() -> None:
        async with client_of(model) as client:
            whole = await client.post("/api/pull", json={"model": "scripted", "stream": False})
            assert (whole.status_code, whole.json()) == (200, {"status": "success"})
            lines = (await client.post("/api/pull", json={"name": "scripted"})).text.splitlines()
            assert msgspec.json.decode(lines[-1]) == {"status": "success"}
            absent = await client.post("/api/pull", json={"model": "other"})
            assert (absent.status_code, list(absent.json())) == (404, ["error"])

    asyncio.run(asking())
