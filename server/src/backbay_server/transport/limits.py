"""The limit of bodies: refused by their length before a byte is read, or as soon as they exceed it."""

from __future__ import annotations

from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import TooLargeError, error_response
from .hosts import header


@final
class BodyLimit:
    """Refuses bodies of more than `most` bytes, and closes their connections, so that no more is sent."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        lengths, received, started = header(scope, b"content-length"), 0, False
        if any(not each.isdigit() or len(each) > 18 or int(each) > self._most for each in lengths):
            await self._refuse(scope, receive, send)
            return

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most:
                raise self._error()
            return message

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive_limited, send_noting)
        except TooLargeError:
            if started:
                raise
            await self._refuse(scope, receive, send)

    def _error(self) -> TooLargeError:
        return TooLargeError(f"the body is larger than {self._most} bytes, the server's limit")

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = error_response(self._error(), scope)
        answer.headers["connection"] = "close"
        await answer(scope, receive, send)
