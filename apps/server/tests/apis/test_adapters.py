"""Adapters of models, asked for by the model's name, or by llama.cpp's field."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from adapter_files import random_pairs, write_adapter
from serving import client_of
from small_llama import write_small_llama

from backbay import OptionError
from backbay_engine import load
from backbay_server import app

PROMPT = "once upon"
FIELDS: dict[str, Any] = {"prompt": PROMPT, "temperature": 0, "n_predict": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "base.gguf", endless=True)


@pytest.fixture(scope="module")
def files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: str(write_adapter(folder / name, random_pairs(model, 4, seed), alpha=4))
        for seed, name in enumerate(("sql", "tone"))
    }


@pytest.fixture(scope="module")
def texts(model: Path, files: dict[str, str]) -> dict[str, str]:
    """The answers of the engine itself."""
    choices: dict[str, Any] = {
        "none": None,
        "sql": "sql",
        "half": {"sql": 0.5},
        "both": {"sql": 1, "tone": 1},
    }
    with load(model, "cpu_ref", context=128, adapters=files) as llm:
        found = {
            name: llm.generate(PROMPT, adapter=choice, temperature=0, max_tokens=8).text
            for name, choice in choices.items()
        }
    assert len(set(found.values())) == len(choices)
    return found


def test_names_and_numbers_choose_adapters(model: Path, files: dict[str, str], texts: dict[str, str]) -> None:
    async def check() -> None:
        async with client_of(model, context=128, adapters=files, aliases={"b": "base"}) as client:

            async def answered(**fields: Any) -> Any:
                answer = await client.post("/completion", json={**FIELDS, **fields})
                return answer.json()["content"] if answer.status_code == 200 else answer.json()

            assert await answered() == texts["none"]
            assert await answered(model="base:sql") == texts["sql"]
            assert await answered(model="b:sql") == texts["sql"]
            assert await answered(lora=[{"id": 0, "scale": 0.5}]) == texts["half"]
            both = [{"id": 1, "scale": 1}, {"id": 0, "scale": 1}]
            assert await answered(model="base:tone", lora=both) == texts["both"]
            assert await answered(model="base:sql", lora=[]) == texts["none"]
            assert "there is no adapter 2" in str(await answered(lora=[{"id": 2, "scale": 1}]))
            assert "does not exist" in str(await answered(model="base:sq"))
            chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "model": "base:tone"}
            answer = await client.post("/v1/chat/completions", json=chat)
            assert answer.json()["model"] == "base:tone"
            listed = (await client.get("/v1/models")).json()["data"]
            named = [each["id"] for each in listed]
            assert named == ["base", "b", "base:sql", "base:tone", "b:sql", "b:tone"]
            assert (await client.get("/v1/models/base:sql")).json()["id"] == "base:sql"
            tags = (await client.get("/api/tags")).json()["models"]
            assert "base:tone" in [each["name"] for each in tags]

    asyncio.run(check())


def test_scales_for_requests_that_name_no_adapter(
    model: Path, files: dict[str, str], texts: dict[str, str]
) -> None:
    async def check() -> None:
        async with client_of(model, context=128, adapters=files) as client:

            async def text_now(**fields: Any) -> str:
                found: str = (await client.post("/completion", json={**FIELDS, **fields})).json()["content"]
                return found

            zero = [{"id": 0, "path": "sql", "scale": 0.0}, {"id": 1, "path": "tone", "scale": 0.0}]
            assert (await client.get("/lora-adapters")).json() == zero
            assert (await client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}])).json()["success"]
            assert (await client.get("/lora-adapters")).json()[0]["scale"] == 0.5
            assert await text_now() == texts["half"]
            assert await text_now(model="base:sql") == texts["sql"]
            assert await text_now(lora=[]) == texts["none"]
            wrong = await client.post("/lora-adapters", json=[{"id": 9, "scale": 0.5}])
            assert wrong.status_code == 400
            assert (await client.post("/lora-adapters", json=[])).json()["success"]
            assert await text_now() == texts["none"]

    asyncio.run(check())


def test_an_adapter_belongs_to_one_model(model: Path, files: dict[str, str], tmp_path: Path) -> None:
    other = write_small_llama(tmp_path / "other.gguf", seed=5)
    with pytest.raises(OptionError, match="there are several models"):
        app(str(model), str(other), backend="cpu_ref", adapters=files)
    with pytest.raises(OptionError, match="'none' is not one that is named"):
        app(str(model), backend="cpu_ref", adapters={"none:sql": files["sql"]})
    with pytest.raises(OptionError, match="no file or folder"):
        app(str(model), backend="cpu_ref", adapters={"sql": str(tmp_path / "gone")})

    async def check() -> None:
        settings: dict[str, Any] = {"context": 128, "adapters": {"base:sql": files["sql"]}, "max_loaded": 2}
        async with client_of(model, other, **settings) as client:
            listed = (await client.get("/v1/models")).json()["data"]
            assert [each["id"] for each in listed] == ["base", "other", "base:sql"]
            assert (await client.get("/lora-adapters?model=other")).json() == []

    asyncio.run(check())
