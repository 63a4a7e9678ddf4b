"""Fetching pictures: only from public addresses of allowed hosts, which are checked again at every redirect."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import StreamReader
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeAlias, final
from urllib.parse import urljoin

from httptools import HttpParserError, HttpResponseParser

from ..errors import InvalidRequestError
from .addresses import IP, AllowedHosts, PictureUrl, is_public, parse_ip

MOST_BYTES: Final = 64 << 20  # of all pictures of a request
MOST_REDIRECTS: Final = 3
MOST_AT_ONCE: Final = 16  # connections
MOST_TRIED: Final = 3  # addresses of a host
SECONDS: Final = 10.0  # for all pictures of a request
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
Message: TypeAlias = Mapping[str, Any]
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[IP]]]


async def resolve_host(host: str, port: int) -> Sequence[IP]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [parse_ip(str(address[0])) for *_, address in found]


@final
class PictureFetcher:
    """Fetches the pictures that messages name by an address.

    A name is resolved once for each connection, and the connection goes to the address that was checked: a name that
    is bound anew in the meantime changes nothing. No proxy is used, and nothing but the address is sent.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        *,
        most_bytes: int = MOST_BYTES,
        seconds: float = SECONDS,
        resolve: Resolve = resolve_host,
        may_reach: Callable[[IP], bool] = is_public,
    ) -> None:
        self._allowed, self._resolve, self._may_reach = AllowedHosts(hosts), resolve, may_reach
        self._most_bytes, self._seconds = most_bytes, seconds
        self._connections = asyncio.Semaphore(MOST_AT_ONCE)

    async def fetched(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with the files of their pictures; InvalidRequestError if one cannot be fetched."""
        contents = [message.get("content") for message in messages]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        urls = dict.fromkeys(url for part in parts if (url := _url(part)))
        if not urls or not self._allowed:
            return messages
        budget = ByteBudget(self._most_bytes)
        try:
            async with asyncio.timeout(self._seconds), asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self.fetch(url, budget)) for url in urls}
        except TimeoutError:
            raise InvalidRequestError(f"the pictures could not be fetched in {self._seconds:g} s") from None
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        files = {url: task.result() for url, task in tasks.items()}
        return [_with_files(message, files) for message in messages]

    async def fetch(self, url: str, budget: ByteBudget) -> bytes:
        """The file at an address, which may send on to others."""
        for _ in range(MOST_REDIRECTS + 1):
            address = self._allowed.checked(url)
            async with self._connections:
                answer, body = await self._asked(address, budget)
            if answer.status == 200:
                return body
            if answer.status not in _REDIRECTS or not answer.location:
                raise InvalidRequestError(f"the picture's host answers with {answer.status}")
            url = urljoin(url, answer.location)
            if address.scheme == "https" and not url.lower().startswith("https:"):
                raise InvalidRequestError("the picture's host sends on from https to an address without it")
        raise InvalidRequestError(f"the picture's host sends on more than {MOST_REDIRECTS} times")

    async def _asked(self, address: PictureUrl, budget: ByteBudget) -> tuple[HttpAnswerReader, bytes]:
        try:
            reader, writer = await self._connected(address)
        except (OSError, UnicodeError):  # no such name, nobody listens, or a wrong certificate
            raise InvalidRequestError(f"the picture's host {address.host!r} cannot be reached") from None
        try:
            lines = [f"GET {address.target} HTTP/1.1", f"Host: {address.named_host}", "User-Agent: backbay"]
            lines += ["Accept: image/*", "Accept-Encoding: identity", "Connection: close"]
            writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii"))
            answer = HttpAnswerReader(budget)
            return answer, await answer.read(reader)
        except OSError:
            told = f"the connection to the picture's host {address.host!r} broke"
            raise InvalidRequestError(told) from None
        finally:
            writer.transport.abort()  # nothing more is wanted, and nobody waits for it

    async def _connected(self, address: PictureUrl) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        found = [ip for ip in await self._resolve(address.host, address.port) if self._may_reach(ip)]
        secure: dict[str, Any] = {}
        if address.scheme == "https":
            secure = {"ssl": self._tls, "server_hostname": address.host}
        for number, ip in enumerate(tried := found[:MOST_TRIED], start=1):
            try:
                return await asyncio.open_connection(str(ip), address.port, **secure)
            except OSError:  # the next one may be reached
                if number == len(tried):
                    raise
        raise InvalidRequestError(f"the picture's host {address.host!r} has no public address")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _url(part: Mapping[str, Any]) -> str:
    """The address of a picture elsewhere; nothing for other parts."""
    url = part["image_url"]["url"] if part["type"] == "image_url" else ""
    return url if url[:8].lower().startswith(("http:", "https:")) else ""


def _with_files(message: Message, files: Mapping[str, bytes]) -> Message:
    if not isinstance(message.get("content"), list):
        return message
    urls = [(_url(part), part) for part in message["content"]]
    return {
        **message,
        "content": [{"type": "image", "image": files[url]} if url else part for url, part in urls],
    }


MOST_HEADERS: Final = 64 << 10  # bytes
CHUNK: Final = 64 << 10


@final
class ByteBudget:
    """Bytes that may still be fetched for a request."""

    def __init__(self, most: int) -> None:
        self._most, self._left = most, most

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise InvalidRequestError(f"the pictures have more than {self._most} bytes, the server's limit")


@final
class HttpAnswerReader:
    """Reads one answer. httptools calls its methods."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget, self._parser = budget, HttpResponseParser(self)
        self._begun, self._whole, self._bounded = False, False, False
        self._parts: list[bytes] = []
        self._taken = 0  # bytes of the body
        self.status, self.location = 0, ""

    async def read(self, reader: StreamReader) -> bytes:
        """The body, if the status is 200; InvalidRequestError if it is too large, or no HTTP."""
        came = 0
        while not self._whole and not (self._begun and self.status != 200):
            data = await reader.read(CHUNK)
            if not data:
                break
            came += len(data)
            try:
                self._parser.feed_data(data)
            except HttpParserError as error:
                if isinstance(error.__context__, InvalidRequestError):  # of a method of ours
                    raise error.__context__ from None
                raise InvalidRequestError("the picture's host gives no HTTP") from None
            if came > 2 * self._taken + MOST_HEADERS:
                raise InvalidRequestError("the picture's host gives headers without end")
        if not self._begun or (self.status == 200 and self._bounded and not self._whole):
            raise InvalidRequestError("the picture's host ends the answer too early")
        return b"".join(self._parts)

    # -- from the parser ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"location":
                self.location = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._bounded = True
            case b"content-encoding" if value.lower() != b"identity":
                raise InvalidRequestError("the picture's host gives an encoding that was not asked for")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._begun = self.status >= 200

    def on_body(self, body: bytes) -> None:
        self._budget.take(len(body))
        self._taken += len(body)
        self._parts.append(body)

    def on_message_complete(self) -> None:
        self._whole = self._begun  # what comes before it, such as 103, has no body
