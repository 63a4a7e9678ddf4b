"""Servers for tests: the application in this process, with a model that the tests know."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Thread
from typing import Any

import httpx
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from backbay_engine import LLM
from backbay_server import app


@asynccontextmanager
async def client_of(*models: object, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server of its own, without a socket."""
    application = app(*map(str, models), **{"backend": "cpu_ref", "context": 512, **settings})
    async with application.router.lifespan_context(application):
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=300) as client:
            yield client


def chunks_of(text: str) -> list[Any]:
    """The events of a stream; the last one is "[DONE]" if the stream is whole."""
    found = []
    for event in text.split("\n\n")[:-1]:
        data = event.removeprefix("data: ")
        found.append(data if data == "[DONE]" else msgspec.json.decode(data))
    return found


@contextmanager
def serving(*models: object, **settings: Any) -> Iterator[Served]:
    """A server on a free port of loopback, in a thread."""
    application = app(*map(str, models), **{"backend": "cpu_ref", "context": 512, **settings})
    with serving_app(application) as address:
        yield Served(f"http://{address}", application)


@contextmanager
def serving_app(application: ASGIApp) -> Iterator[str]:
    """The address, with its port, at which an application is served by a thread."""
    config = uvicorn.Config(application, "127.0.0.1", 0, ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, name="served")
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        [port] = {sock.getsockname()[1] for each in server.servers for sock in each.sockets}
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()


class Served:
    """A server that runs."""

    def __init__(self, url: str, application: Starlette) -> None:
        self.url, self.application = url, application

    def busy(self, model: str) -> int:
        """The requests that the model answers, or that wait for it."""
        state = self.model(model).state()
        return state.busy + state.waiting

    def model(self, name: str) -> LLM:
        """A model in memory."""
        pool = self.application.state.services.pool
        [llm] = [held.llm for held in pool.held() if held.entry.name == name]
        return llm


def begun(served: Served, sent: dict[str, object], path: str = "/v1/chat/completions") -> socket.socket:
    """The connection of a request that has been sent."""
    connection = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])))
    content = msgspec.json.encode(sent)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection
