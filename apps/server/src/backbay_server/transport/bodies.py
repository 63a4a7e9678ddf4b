"""Bodies of requests: read whole, and decoded as the API's structs; and the work for a client, which ends when it leaves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, TypeVar, final

import msgspec
from starlette.types import Receive, Scope

from ..errors import InvalidRequestError
from .forms import FormReader
from .request_checks import header_value

T = TypeVar("T")
LONG: Final = 1 << 18  # bytes; decoding more would hold up the event loop
MOST_ESCAPES: Final = 1 << 18  # of a body in which halves of surrogate pairs are looked for
# escaped backslashes and whole pairs, in the group; or halves of pairs
_SURROGATES: Final = re.compile(
    rb"(\\\\|\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2})|\\u[dD][89a-fA-F][\da-fA-F]{2}"
)
_PLACE: Final = re.compile(r"(.*) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)


class DisconnectedError(Exception):
    """The client has left."""


async def read_body(receive: Receive) -> bytes:
    """The whole body; DisconnectedError if the client leaves before its end."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def require_plain(scope: Scope) -> None:
    """InvalidRequestError if the body is compressed: its size would not be known before it is read."""
    coded = [
        value for value in header_value(scope, b"content-encoding") if value.strip().lower() != b"identity"
    ]
    if coded:
        raise InvalidRequestError(f"the body is coded as {coded[0].decode('latin-1')}; send it as it is")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run the work; cancel it as soon as the client leaves. The body has been read."""

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})
    if not working.cancelled():
        working.result()


@final
class BodyDecoder(Generic[T]):
    """Decodes bodies of one type, JSON or forms; InvalidRequestError names the field that is wrong."""

    def __init__(self, kind: type[T], check: Callable[[T], None], *, form: bool = False) -> None:
        self._check = check
        self._read = FormReader(kind).read if form else partial(_json, msgspec.json.Decoder(kind))

    async def decoded(self, scope: Scope, body: bytes) -> T:
        if len(body) > LONG:
            return await asyncio.to_thread(self._decoded, scope, body)
        return self._decoded(scope, body)

    def _decoded(self, scope: Scope, body: bytes) -> T:
        try:
            found = self._read(scope, body)
        except msgspec.ValidationError as error:
            message, param = _placed(str(error))
            raise InvalidRequestError(message, param=param) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
        except RecursionError:
            raise InvalidRequestError("the body is nested too deeply") from None
        self._check(found)
        return found


def _json(decoder: msgspec.json.Decoder[T], _: Scope, body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = mend_surrogates(body)
        if mended == body:
            raise
        return decoder.decode(mended)


def mend_surrogates(text: bytes) -> bytes:
    """JSON with U+FFFD for each half of a surrogate pair, which JavaScript writes where it has cut an emoji in two."""
    if text.count(b"\\") > MOST_ESCAPES:
        return text
    return _SURROGATES.sub(lambda found: found[1] or b"\\ufffd", text)


def _placed(text: str) -> tuple[str, str | None]:
    """msgspec's message, and the field that it names."""
    found = _PLACE.fullmatch(text)
    if found is None:
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL)
        if unknown is None:
            return text, None
        return f"Unrecognized request argument supplied: {unknown[1]}", unknown[1]
    message, param = found.groups()
    return (f"{param}: {message}", param) if param else (message, None)
