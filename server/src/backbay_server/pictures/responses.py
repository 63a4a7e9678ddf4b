"""The answer of a host: its status, where it sends on, and its body, read under a budget."""

from __future__ import annotations

from asyncio import StreamReader
from typing import Final, final

from httptools import HttpParserError, HttpResponseParser

from ..errors import InvalidRequestError

MOST_HEADERS: Final = 64 << 10  # bytes
CHUNK: Final = 64 << 10


@final
class Budget:
    """Bytes that may still be fetched for a request."""

    def __init__(self, most: int) -> None:
        self._most, self._left = most, most

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise InvalidRequestError(f"the pictures have more than {self._most} bytes, the server's limit")


@final
class Answer:
    """Reads one answer. httptools calls its methods."""

    def __init__(self, budget: Budget) -> None:
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
