"""The list of models."""

from __future__ import annotations

import asyncio
from pathlib import Path

from scripted_model import write_scripted_model
from serving import client_of


def test_models_are_listed_and_shown(tmp_path: Path):
    model = write_scripted_model(tmp_path / "scripted.gguf")

    async def asking() -> None:
        async with client_of(model, aliases={"gpt-4": "scripted"}) as client:
            listed = (await client.get("/v1/models")).json()
            assert [each["id"] for each in listed["data"]] == ["scripted", "gpt-4"]
            assert (await client.get("/v1/models/gpt-4")).json()["object"] == "model"
            assert (await client.get("/v1/models/gpt-5")).status_code == 404
            assert (await client.get("/v1/nothing")).json()["error"]["type"] == "invalid_request_error"
            assert (await client.post("/v1/models")).status_code == 405

    asyncio.run(asking())
