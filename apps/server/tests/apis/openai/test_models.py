"""The list of models."""

from __future__ import annotations

import asyncio
from datetime import datetime
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


def test_clients_of_anthropic_get_their_own_form(tmp_path: Path):
    model = write_scripted_model(tmp_path / "scripted.gguf")

    async def asking() -> None:
        async with client_of(model) as client:
            headers = {"anthropic-version": "2023-06-01"}
            listed = (await client.get("/v1/models", headers=headers)).json()
            assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (
                False,
                "scripted",
                "scripted",
            )
            [one] = listed["data"]
            assert (one["type"], one["id"], one["display_name"]) == ("model", "scripted", "scripted")
            assert datetime.fromisoformat(one["created_at"]).tzinfo is not None
            assert (await client.get("/v1/models/scripted", headers=headers)).json() == one
            for path, more in (("/v1/models/x", headers), ("/v1/complete", {}), ("/v1/nothing", headers)):
                found = await client.get(path, headers=more)
                assert found.json()["type"] == "error", path
                assert found.json()["error"]["type"] == "not_found_error"
                assert found.json()["request_id"] == found.headers["request-id"]

    asyncio.run(asking())


def test_every_answer_has_an_id(tmp_path: Path):
    model = write_scripted_model(tmp_path / "scripted.gguf")
    said = [{"role": "user", "content": "[ok]"}]

    async def asking() -> None:
        async with client_of(model, keys=("k",)) as client:
            ids = []
            for path, body, key in (
                ("/v1/chat/completions", {"messages": said}, "k"),
                ("/v1/chat/completions", {"messages": said, "stream": True}, "k"),
                ("/v1/chat/completions", {"messages": said, "model": "other"}, "k"),
                ("/v1/chat/completions", {"messages": said}, "wrong"),
                ("/v1/messages", {"messages": said}, "k"),
                ("/nothing", {}, "k"),
            ):
                found = await client.post(path, json=body, headers={"x-api-key": key})
                ids.append(found.headers["x-request-id"])
                assert found.headers.get_list("request-id") == ids[-1:], path
            assert len({*ids}) == len(ids)

    asyncio.run(asking())
