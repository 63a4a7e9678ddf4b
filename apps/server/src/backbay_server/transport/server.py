"""The HTTP server of the command: uvicorn with our connections, and with a drain instead of a sudden end."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import threading
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import final

import uvicorn
from starlette.types import ASGIApp

from backbay import BackbayError

from .connections import BoundedConnection
from .request_checks import RequestDrain

log = logging.getLogger(__name__)
KEEP_ALIVE = 75  # seconds; clients drop idle connections earlier, so that none is closed under a request
GRACE = 5.0  # seconds for cancelled requests to tell their clients
SPARE_FILES = 256  # for models, logs and workers
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@final
class Server(uvicorn.Server):
    """Serves an application until SIGTERM or SIGINT; then it refuses new requests and finishes the running ones.

    drain_seconds  after which running requests are cancelled
    cancel         cancels all requests
    listening      is called once, when connections are accepted
    """

    def __init__(
        self,
        app: ASGIApp,
        drain: RequestDrain,
        *,
        drain_seconds: float,
        cancel: Callable[[], Awaitable[None]],
        listening: Callable[[], None],
    ) -> None:
        BoundedConnection.most_connections = connection_limit(_files())
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedConnection,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(GRACE),
            )
        )
        self._drain, self._drain_seconds = drain, drain_seconds
        self._cancel, self._listening = cancel, listening
        self._loop: AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._signalled = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._listening()
        if self._signalled:
            self._begin_to_end()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; end at once at the second."""
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True
        if self.started and self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._drain.begin()
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        if self._drain.running:
            log.warning(
                "finishing %d requests, for at most %g s; another signal ends them at once",
                self._drain.running,
                self._drain_seconds,
            )
        if not await self._drain.wait(self._drain_seconds):
            log.warning("cancelling %d requests", self._drain.running)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await self._cancel()
            await self._drain.wait(GRACE)
        self.should_exit = True


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket with an address; BackbayError if the address is taken or is not this machine's."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BackbayError(f"{host} port {port}: {error.strerror or error}") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        raise BackbayError(f"{host} port {port}: {error.strerror}; choose another with --port") from None
    return made


def connection_limit(files: int) -> int:
    """The most connections of a process that may open so many files; where these are few, half of them."""
    return max(files - SPARE_FILES, files // 2, 1)


def _files() -> int:
    """The number of files that the process may open, after it has been raised to the most that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else 1 << 20
