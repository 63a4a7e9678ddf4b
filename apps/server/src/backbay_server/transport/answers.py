"""Answers: JSON, plain text, and streams of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import msgspec
from starlette.types import Send

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
JSON_LINES: Final = "application/x-ndjson"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
encode: Final = msgspec.json.Encoder().encode
Fail: TypeAlias = Callable[[BaseException], bytes]
"""Gives the body of an error in the API's form."""


@final
@dataclass(frozen=True)
class JsonResponse:
    """A struct as JSON."""

    body: object

    async def send(self, send: Send, headers: Mapping[str, str], fail: Fail) -> None:
        content = encode(self.body)
        await send(_start("application/json", {"content-length": str(len(content)), **headers}))
        await send({"type": "http.response.body", "body": content})


@final
@dataclass(frozen=True)
class TextResponse:
    """Plain text."""

    text: str

    async def send(self, send: Send, headers: Mapping[str, str], fail: Fail) -> None:
        content = self.text.encode()
        await send(_start(PLAIN_TEXT, {"content-length": str(len(content)), **headers}))
        await send({"type": "http.response.body", "body": content})


@final
@dataclass(frozen=True)
class StreamResponse:
    """Chunks as they come. An error before the first chunk is raised; a later one is the last chunk."""

    chunks: AsyncGenerator[bytes, None]
    media_type: str
    framed: Callable[[bytes], bytes]  # makes a chunk of an error's body

    async def send(self, send: Send, headers: Mapping[str, str], fail: Fail) -> None:
        async with aclosing(self.chunks) as chunks:
            first = await anext(chunks, b"")
            await send(_start(self.media_type, {"cache-control": "no-cache", **headers}))
            await send(_part(first))
            try:
                async for chunk in chunks:
                    await send(_part(chunk))
            except Exception as error:  # noqa: BLE001  the client is told, the status has been sent
                await send(_part(self.framed(fail(error))))
            await send({"type": "http.response.body", "body": b""})


def event_stream(chunks: AsyncGenerator[bytes, None]) -> StreamResponse:
    """Server-sent events, made by `sse`."""
    return StreamResponse(chunks, EVENT_STREAM, sse)


def sse(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def named_sse(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def event_sse(event: msgspec.Struct) -> bytes:
    """A server-sent event of a struct, whose tag is its name."""
    return named_sse(str(event.__struct_config__.tag), encode(event))


def json_line(data: bytes) -> bytes:
    """A line of a stream of JSON_LINES."""
    return data + b"\n"


def _part(body: bytes) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _start(media_type: str, headers: Mapping[str, str]) -> dict[str, object]:
    named = {"content-type": media_type, **headers}
    sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    return {"type": "http.response.start", "status": 200, "headers": sent}
