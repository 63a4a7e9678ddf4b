"""The limit of bodies: refused by their length before a byte is read, or as soon as they exceed it."""

from __future__ import annotations

from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import TooLargeError, error_response
from .hosts import header

CLOSE = (b"connection", b"close")
MOST_DIGITS = 18


@final
class BodyLimit:
    """Refuses bodies of more than `most` bytes, and closes their connections, so that no more is sent.

    If a body's length is not told, the application gets TooLargeError when it reads on.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if any(self._exceeds(length) for length in header(scope, b"content-length")):
            answer = error_response(self._error(), scope)
            answer.headers["connection"] = "close"
            await answer(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._most:
                raise self._error()
            return message

        async def send_closing(message: Message) -> None:
            if received > self._most and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive_limited, send_closing)

    def _exceeds(self, length: bytes) -> bool:
        return not length.isdigit() or len(length) > MOST_DIGITS or int(length) > self._most

    def _error(self) -> TooLargeError:
        return TooLargeError(f"the body is larger than {self._most} bytes, the server's limit")
