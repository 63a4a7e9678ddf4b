"""An application without lifespan events, as clients in tests and applications that mount it call it."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_model import write_scripted_model
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from backbay import OptionError
from backbay_server import ServerSettings, app

CHAT = {"messages": [{"role": "user", "content": "[ok]"}]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


def made(path: Path) -> Starlette:
    return app(str(path), backend="cpu_ref", context=256)


async def ask(application: ASGIApp, where: str = "/v1/chat/completions") -> httpx.Response:
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:
        return await client.post(where, json=CHAT)


def models(application: Starlette) -> list[Any]:
    return [held.llm for held in application.state.services.pool.held()]


def test_the_first_request_starts_the_services(path: Path) -> None:
    application = made(path)

    async def asking() -> None:
        first, second = await asyncio.gather(ask(application), ask(application))
        assert (first.status_code, second.status_code) == (200, 200)
        [llm] = models(application)
        assert (await ask(application)).status_code == 200
        assert models(application) == [llm]

    asyncio.run(asking())


def test_an_application_may_be_mounted_in_another(path: Path) -> None:
    outer = Starlette(routes=[Mount("/models", made(path))])
    assert asyncio.run(ask(outer, "/models/v1/chat/completions")).status_code == 200


def test_each_event_loop_has_services_of_its_own_and_closes_the_last_ones(path: Path) -> None:
    application = made(path)
    assert asyncio.run(ask(application)).status_code == 200
    [first] = models(application)
    assert asyncio.run(ask(application)).status_code == 200
    [second] = models(application)
    assert first is not second
    assert first.backend.closed
    assert not second.backend.closed


def test_a_second_event_loop_beside_the_first_is_told_the_remedy(path: Path) -> None:
    application, answered, done = made(path), threading.Event(), threading.Event()

    async def hold() -> None:
        await ask(application)
        answered.set()
        await asyncio.to_thread(done.wait, 300)

    thread = threading.Thread(target=asyncio.run, args=(hold(),))
    thread.start()
    try:
        assert answered.wait(300)
        refused = asyncio.run(ask(application))
    finally:
        done.set()
        thread.join()
    assert refused.status_code == 503
    assert "the events of ASGI's lifespan" in refused.json()["error"]["message"]


def test_a_model_closes_with_its_application(path: Path) -> None:
    application = made(path)
    asyncio.run(ask(application))
    [llm] = models(application)
    backend, gone = llm.backend, weakref.ref(llm)
    del application, llm
    gc.collect()
    assert gone() is None
    assert backend.closed


def test_a_lifespan_takes_over_what_a_request_has_started(path: Path) -> None:
    application = made(path)
    asyncio.run(ask(application))
    [before] = models(application)

    async def living() -> int:
        async with application.router.lifespan_context(application):
            assert before.backend.closed
            return (await ask(application)).status_code

    assert asyncio.run(living()) == 200
    assert asyncio.run(ask(application)).status_code == 503  # it has ended


def test_a_misspelled_field_of_the_settings_is_named(path: Path) -> None:
    with pytest.raises(OptionError, match="unknown option 'contxt'; nearest: 'context'"):
        app(str(path), contxt=256)
    with pytest.raises(OptionError, match="unknown option 'settngs'; nearest: 'settings'"):
        app(settngs=ServerSettings())
    with pytest.raises(OptionError, match="not both"):
        app(str(path), settings=ServerSettings())
