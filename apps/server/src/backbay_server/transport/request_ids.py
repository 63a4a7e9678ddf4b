"""Ids of requests: each answer, errors too, names its own, so that a client can report it."""

from __future__ import annotations

import secrets
from typing import Final, final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import REQUEST_ID

HEADERS: Final = b"x-request-id", b"request-id"  # OpenAI's clients read the first one, Anthropic's the second


def request_id(scope: Scope) -> str:
    """The id of a request; a new one if no middleware has given it one."""
    if REQUEST_ID not in scope:
        scope[REQUEST_ID] = secrets.token_hex(12)
    found: str = scope[REQUEST_ID]
    return found


@final
class IdMiddleware:
    """Middleware that writes the id of each request into the headers of its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id = request_id(scope).encode()
        named = [(name, id) for name in HEADERS]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *named]}
            await send(message)

        await self._app(scope, receive, send_named)
