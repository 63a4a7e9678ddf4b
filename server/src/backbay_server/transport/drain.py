"""Draining: the requests in progress are counted, so that the server can end when they are done."""

from __future__ import annotations

import asyncio
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import UnavailableError, error_response
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

    def enter(self) -> None:
        self.running += 1
        self._idle.clear()

    def leave(self) -> None:
        self.running -= 1
        if not self.running:
            self._idle.set()


@final
class Draining:
    """The middleware of a drain."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app, self._drain = app, drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]):
            await self._app(scope, receive, send)
        elif self._drain.begun:
            answer = error_response(UnavailableError("the server is shutting down"), scope)
            answer.headers["connection"] = "close"
            await answer(scope, receive, send)
        else:
            self._drain.enter()
            try:
                await self._app(scope, receive, send)
            finally:
                self._drain.leave()
