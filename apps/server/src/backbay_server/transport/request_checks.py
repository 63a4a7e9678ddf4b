"""Checks of requests: middleware that refuses requests by the headers Host and Origin, by keys, by length, and while the server ends."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from os import PathLike
from typing import ClassVar, Final, final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backbay import OptionError
from backbay.internals import read_regular

from ..errors import (
    ApiError,
    AuthenticationError,
    ForbiddenError,
    RequestTooLargeError,
    UnavailableError,
    error_response,
)

ANY: Final = "*"
EXPOSED: Final = b"x-request-id, request-id, x-backbay-ignored, retry-after"
CLOSE: Final = (b"connection", b"close")
MOST_DISCARDED: Final = 64 << 20  # bytes of a body that was refused
LINGER_SECONDS: Final = 10.0  # for which they may come
MOST_DIGITS: Final = 18  # of a length; the parser of HTTP has refused all else
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[\w.\-]+)(:\d{1,5})?", re.ASCII)
_NAMES: Final = re.compile(rb"[\w\-]+( *, *[\w\-]+)*", re.ASCII)


class RequestCheck(ABC):
    """Middleware that refuses some requests."""

    closes: ClassVar[bool] = False  # the connection of a refused request, so that no more is sent

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
                send = lingering(receive, send)
            await answer(scope, receive, send)

    @abstractmethod
    def refusal(self, scope: Scope) -> ApiError | None:
        """Why a request is refused; None: it is served."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def lingering(receive: Receive, send: Send) -> Send:
    """A `send` whose answer ends, and whose connection is closed, after the rest of the body has come, or a while.

    A connection that is closed while its client sends is reset, and many clients never see the answer.
    """

    async def send_lingering(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body"):
            await send(message)
            return
        await send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await _discard(receive)
        await send({"type": "http.response.body", "body": b""})

    return send_lingering


async def _discard(receive: Receive) -> None:
    left = MOST_DISCARDED
    while left > 0:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return
        left -= len(message["body"])


def header_value(scope: Scope, name: bytes) -> list[bytes]:
    return [value for each, value in scope["headers"] if each == name]


@final
class HostCheck(RequestCheck):
    """Serves requests for localhost, for addresses, and for the given names; `*` allows all names.

    A page of another site may have a name that resolves to this machine (DNS rebinding). An address cannot be rebound:
    only names resolve.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        super().__init__(app)
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    def refusal(self, scope: Scope) -> ApiError | None:
        given = header_value(scope, b"host")
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
class OriginCheck(RequestCheck):
    """Serves pages of this server and of the named origins, such as https://chat.example.com; `*` names all.

    Pages of other sites are refused; named ones are told so (CORS).
    """

    def __init__(self, app: ASGIApp, origins: Iterable[str] = ()) -> None:
        super().__init__(app)
        self._origins = frozenset(origin.lower().rstrip("/").encode() for origin in origins)

    def refusal(self, scope: Scope) -> ApiError | None:
        given = header_value(scope, b"origin")
        if not given or (len(given) == 1 and (self._names(given[0]) or _is_own(given[0], scope))):
            return None
        return ForbiddenError("pages of this origin may not use the server; see --allow-origin")

    def _names(self, origin: bytes) -> bool:
        return not self._origins.isdisjoint((ANY.encode(), origin.lower()))

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; the browser of a page of a named origin may show it the answer."""
        given = header_value(scope, b"origin")
        if not given or not self._names(given[0]):
            await self._app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", given[0]), (b"vary", b"origin")]
        if scope["method"] == "OPTIONS" and header_value(scope, b"access-control-request-method"):
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
    for names in header_value(scope, b"access-control-request-headers"):
        if _NAMES.fullmatch(names.strip()) and len(names) <= 1024:
            answer.raw_headers.append((b"access-control-allow-headers", names.strip()))
    if header_value(scope, b"access-control-request-private-network") == [b"true"]:
        answer.raw_headers.append((b"access-control-allow-private-network", b"true"))
    return answer


def _is_own(origin: bytes, scope: Scope) -> bool:
    """Whether a page comes from this server, under the name by which the request asks for it."""
    host = header_value(scope, b"host")
    scheme, _, rest = origin.lower().partition(b"://")
    return scheme in {b"http", b"https"} and len(host) == 1 and rest == host[0].strip().lower()


@final
class BodySizeCheck(RequestCheck):
    """Refuses bodies of more than `most` bytes: by their length before a byte is read, or as soon as they exceed it.

    If a body's length is not told, the application gets RequestTooLargeError when it reads on.
    """

    closes = True

    def __init__(self, app: ASGIApp, most: int) -> None:
        super().__init__(app)
        self._most = most

    def refusal(self, scope: Scope) -> ApiError | None:
        lengths = header_value(scope, b"content-length")
        fits = all(len(each) <= MOST_DIGITS and int(each) <= self._most for each in lengths)
        return None if fits else self._error()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, ended = 0, False

        async def receive_limited() -> Message:
            nonlocal received, ended
            message = await receive()
            received += len(message.get("body", b""))
            ended = not message.get("more_body")
            if received > self._most:
                raise self._error()
            return message

        async def receive_rest() -> Message:
            return {"type": "http.disconnect"} if ended else await receive()

        linger = lingering(receive_rest, send)

        async def send_closing(message: Message) -> None:
            if received <= self._most:
                await send(message)
                return
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await linger(message)

        await self._app(scope, receive_limited, send_closing)

    def _error(self) -> RequestTooLargeError:
        return RequestTooLargeError(f"the body is larger than {self._most} bytes, the server's limit")


MOST_BYTES = 1 << 20
OPEN = frozenset({"/", "/health", "/v1/health", "/ready", "/metrics"})
PAGE = "/page/"  # files that everybody may have
# OpenAI's first words: litellm knows a wrong key by them
WRONG = "Incorrect API key provided, or none: send the header Authorization: Bearer KEY"


def read_keys(path: str | PathLike[str]) -> tuple[str, ...]:
    """The keys in a file, one on a line; lines that begin with # are remarks. OptionError if there is none."""
    try:
        text = read_regular(path, MOST_BYTES).decode("ascii")
    except OSError as error:
        raise OptionError(f"the keys in {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"the keys in {path} must be ASCII text") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise OptionError(f"{path} holds no key; write one on a line")
    return keys


def is_open_route(path: str) -> bool:
    """Whether a path wants no key, and is served to the last."""
    return path in OPEN or path.startswith(PAGE)


@final
class KeyCheck(RequestCheck):
    """Refuses requests without a key, as `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        super().__init__(app)
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    def refusal(self, scope: Scope) -> ApiError | None:
        if is_open_route(scope["path"]):
            return None
        given = [key for name, value in scope["headers"] if (key := _key(name, value))]
        # every digest is compared with every key, so that the time tells nothing
        sums = [sha256(key).digest() for key in given[:4]]
        found = [compare_digest(each, digest) for each in sums for digest in self._digests]
        return None if any(found) else AuthenticationError(WRONG)


def _key(name: bytes, value: bytes) -> bytes:
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else b""
    return value.strip() if name in {b"x-api-key", b"api-key"} else b""


@final
class RequestDrain:
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
class DrainCheck(RequestCheck):
    """The middleware of a drain."""

    closes = True

    def __init__(self, app: ASGIApp, drain: RequestDrain) -> None:
        super().__init__(app)
        self._drain = drain

    def refusal(self, scope: Scope) -> ApiError | None:
        refused = self._drain.begun and not is_open_route(scope["path"])
        return UnavailableError("the server is shutting down") if refused else None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        counted = nullcontext() if is_open_route(scope["path"]) else self._drain.counting()
        with counted:
            await self._app(scope, receive, send)
