"""Guards: middleware that refuses requests by the headers Host and Origin, and by the length of the body."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from ipaddress import ip_address
from typing import ClassVar, Final, final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import ApiError, ForbiddenError, TooLargeError, error_response

ANY: Final = "*"
EXPOSED: Final = b"x-request-id, retry-after"
CLOSE: Final = (b"connection", b"close")
MOST_DIGITS: Final = 18  # of a length
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[\w.\-]+)(:\d{1,5})?", re.ASCII)
_NAMES: Final = re.compile(rb"[\w\-]+( *, *[\w\-]+)*", re.ASCII)


class Guard(ABC):
    """Middleware that refuses some requests.

    closes  whether the connection of a refused request is closed, so that no more is sent
    """

    closes: ClassVar[bool] = False

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (error := self.refusal(scope)) is None:
            await self.serve(scope, receive, send)
        else:
            answer = error_response(error, scope)
            if self.closes:
                answer.headers["connection"] = "close"
            await answer(scope, receive, send)

    @abstractmethod
    def refusal(self, scope: Scope) -> ApiError | None:
        """Why a request is refused; None: it is served."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def header(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


@final
class Hosts(Guard):
    """Serves requests for localhost, for addresses, and for the given names; `*` allows all names.

    A page of another site may have a name that resolves to this machine (DNS rebinding). An address cannot be rebound:
    only names resolve.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        super().__init__(app)
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    def refusal(self, scope: Scope) -> ApiError | None:
        given = header(scope, b"host")
        if not given or (len(given) == 1 and self._allows(given[0].decode("latin-1").strip())):
            return None  # none: no browser; checks of load balancers may send none
        return ForbiddenError("the header Host names none of this server's hosts; see --allow-host")

    def _allows(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost") or not self._names.isdisjoint((ANY, name)):
            return True
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


@final
class Origins(Guard):
    """Serves pages of this server and of the named origins, such as https://chat.example.com; `*` names all.

    Pages of other sites are refused; named ones are told so (CORS).
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str] = ()) -> None:
        super().__init__(app)
        self._origins = frozenset(origin.lower().rstrip("/").encode() for origin in origins)

    def refusal(self, scope: Scope) -> ApiError | None:
        given = header(scope, b"origin")
        if not given or (len(given) == 1 and (self._names(given[0]) or _is_own(given[0], scope))):
            return None
        return ForbiddenError("pages of this origin may not use the server; see --allow-origin")

    def _names(self, origin: bytes) -> bool:
        return not self._origins.isdisjoint((ANY.encode(), origin.lower()))

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; the browser of a page of a named origin may show it the answer."""
        given = header(scope, b"origin")
        if not given or not self._names(given[0]):
            await self._app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", given[0]), (b"vary", b"origin")]
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


def _is_own(origin: bytes, scope: Scope) -> bool:
    """Whether a page comes from this server, under the name by which the request asks for it."""
    host = header(scope, b"host")
    scheme, _, rest = origin.lower().partition(b"://")
    return scheme in {b"http", b"https"} and len(host) == 1 and rest == host[0].strip().lower()


@final
class BodyLimit(Guard):
    """Refuses bodies of more than `most` bytes: by their length before a byte is read, or as soon as they exceed it.

    If a body's length is not told, the application gets TooLargeError when it reads on.
    """

    closes = True

    def __init__(self, app: ASGIApp, most: int) -> None:
        super().__init__(app)
        self._most = most

    def refusal(self, scope: Scope) -> ApiError | None:
        lengths = header(scope, b"content-length")
        fits = all(
            each.isdigit() and len(each) <= MOST_DIGITS and int(each) <= self._most for each in lengths
        )
        return None if fits else self._error()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
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

    def _error(self) -> TooLargeError:
        return TooLargeError(f"the body is larger than {self._most} bytes, the server's limit")
