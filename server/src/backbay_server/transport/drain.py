"""Draining: the requests in progress are counted, so that the server can end when they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ApiError, UnavailableError
from .guards import Guard
from .keys import is_open


@final
class Drain:
    """Counts requests; once it has begun, new ones get 503. Requests for open routes are answered all the time."""

    def __init__(self) -> None:
        self.begun = False
        self.running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        self.begun = True

    async def wait(self, seconds: float) -> bool:
        """Wait until no request runs; False if this takes longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A request runs in the block."""
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()


@final
class Draining(Guard):
    """The middleware of a drain."""

    closes = True

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        super().__init__(app)
        self._drain = drain

    def refusal(self, scope: Scope) -> ApiError | None:
        refused = self._drain.begun and not is_open(scope["path"])
        return UnavailableError("the server is shutting down") if refused else None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = nullcontext() if is_open(scope["path"]) else self._drain.counting()
        with counted:
            await self._app(scope, receive, send)
