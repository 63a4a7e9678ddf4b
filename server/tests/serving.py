"""Servers for tests: the application in this process, with a model that the tests know."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from backbay_server import app


@asynccontextmanager
async def client_of(*models: object, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of its own, without a socket."""
    application = app(*map(str, models), **{"backend": "cpu_ref", "context": 512, **settings})
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            yield client


def chunks_of(text: str) -> list[Any]:
    """The events of a stream; the last one is "[DONE]" if the stream is whole."""
    found = []
    for event in text.split("\n\n")[:-1]:
        data = event.removeprefix("data: ")
        found.append(data if data == "[DONE]" else msgspec.json.decode(data))
    return found
