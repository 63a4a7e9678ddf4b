"""The header Origin: pages of other sites are refused, unless they are named; named ones are told so (CORS)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ForbiddenError, error_response
from .hosts import ANY, header

_NAMES = re.compile(rb"[\w\-]+( *, *[\w\-]+)*", re.ASCII)
EXPOSED = b"x-request-id, retry-after"


@final
class Origins:
    """Serves pages of this server and of the named origins, such as https://chat.example.com; `*` names all."""

    def __init__(self, app: ASGIApp, origins: Iterable[str] = ()) -> None:
        self._app = app
        self._origins = frozenset(origin.lower().rstrip("/").encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header(scope, b"origin") if scope["type"] == "http" else []
        if not given:
            await self._app(scope, receive, send)
        elif len(given) == 1 and self._names(given[0]):
            await self._serve(given[0], scope, receive, send)
        elif len(given) == 1 and _is_own(given[0], scope):
            await self._app(scope, receive, send)
        else:
            error = ForbiddenError("pages of this origin may not use the server; see --allow-origin")
            await error_response(error, scope)(scope, receive, send)

    def _names(self, origin: bytes) -> bool:
        return ANY.encode() in self._origins or origin.lower() in self._origins

    async def _serve(self, origin: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a page of a named origin, and let its browser show it the answer."""
        allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"):
            await _preflight(scope, allowed)(scope, receive, send)
            return

        async def send_allowing(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [*allowed, (b"access-control-expose-headers", EXPOSED)]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(scope, receive, send_allowing)


def _preflight(scope: Scope, allowed: list[tuple[bytes, bytes]]) -> Response:
    """The answer to a browser's question which methods and headers a page may send."""
    answer = Response(status_code=204)
    answer.raw_headers += [*allowed, (b"access-control-allow-methods", b"GET, POST, DELETE")]
    answer.raw_headers.append((b"access-control-max-age", b"600"))
    for names in header(scope, b"access-control-request-headers"):
        if _NAMES.fullmatch(names.strip()) and len(names) <= 1024:
            answer.raw_headers.append((b"access-control-allow-headers", names.strip()))
    if header(scope, b"access-control-request-private-network") == [b"true"]:
        answer.raw_headers.append((b"access-control-allow-private-network", b"true"))
    return answer


def _is_own(origin: bytes, scope: dict[str, Any] | Scope) -> bool:
    """Whether a page comes from this server, under the name by which the request asks for it."""
    host = header(scope, b"host")
    scheme, _, rest = origin.lower().partition(b"://")
    return scheme in {b"http", b"https"} and len(host) == 1 and rest == host[0].strip().lower()
