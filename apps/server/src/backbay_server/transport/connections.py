"""Connections: limits on headers and on silence, which uvicorn does not have."""

from __future__ import annotations

from asyncio import TimerHandle, Transport
from collections.abc import Callable
from sys import maxsize
from typing import Any, final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MOST_HEADERS = 64 << 10  # bytes of a request's line and headers, or of a body's trailers
HEADER_SECONDS = 20.0  # from the connection, or from the first byte, to the end of the headers
BODY_SECONDS = 300.0  # from the end of the headers to the end of the body
SLOW_SECONDS = 20.0  # in which LEAST_BYTES of a body must come
LEAST_BYTES = 1 << 10
STALLED_SECONDS = 60.0  # for which a client may take nothing of an answer that waits to be sent
REFUSED = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


@final
class BoundedConnection(HttpToolsProtocol):
    """A connection that is closed when its client sends headers without end, sends too slowly, or takes nothing."""

    most_connections = 1 << 16
    header_seconds, body_seconds, stalled_seconds = HEADER_SECONDS, BODY_SECONDS, STALLED_SECONDS
    slow_seconds = SLOW_SECONDS
    _reading: TimerHandle | None = None
    _writing: TimerHandle | None = None
    _body_end = 0.0  # when the body must be there, by the event loop's clock
    _fresh = 0  # bytes of the body since its rate was looked at
    _unparsed = 0  # bytes since the last part of a request was complete

    # -- from the transport ------------------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            self._refuse(b"503 Service Unavailable")
        else:
            self._expect(self.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self._stop_writing_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._reading is None and self._is_idle():
            self._expect(self.header_seconds)
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > MOST_HEADERS:
            self._refuse(b"431 Request Header Fields Too Large")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing = self.loop.call_later(self.stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_writing_timer()

    # -- from the parser ---------------------------------------------------------------------------------

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            _send_without_chunks(self.cycle)
        self._body_end = self.loop.time() + self.body_seconds
        self._expect_body()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._fresh += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._expect(None)
        super().on_message_complete()

    # -- silence -----------------------------------------------------------------------------------------

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # nobody takes the answer; `close` would wait for it
        super().timeout_keep_alive_handler()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        """Begin to wait for the next part of a request; None: nothing is waited for."""
        if self._reading is not None:
            self._reading.cancel()
        self._reading = None if seconds is None else self.loop.call_later(seconds, then or self._late)

    def _expect_body(self) -> None:
        self._fresh = 0
        left = self._body_end - self.loop.time()
        self._expect(min(left, self.slow_seconds), self._look_at_rate if left > self.slow_seconds else None)

    def _look_at_rate(self) -> None:
        """End a connection whose body comes so slowly that it only holds the connection."""
        if self._fresh < LEAST_BYTES:
            self._late()
        else:
            self._expect_body()

    def _stop_writing_timer(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None

    def _late(self) -> None:
        if self.pipeline:  # nothing is read while an earlier answer runs: the time begins after it
            self._body_end = self.loop.time() + self.body_seconds
            self._expect_body()
            return
        self._reading = None
        self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        """Close the connection, with a status unless an answer has begun."""
        if self.transport.is_closing():
            return
        if self._is_idle() or not self.cycle.response_started:
            self.transport.write(REFUSED % status)
        self.transport.close()


def _send_without_chunks(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 knows no chunks: an answer of unknown length is sent as it is, and ends with the connection."""
    send, unknown = cycle.send, False

    async def unframed(message: Any) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name.lower() != b"content-length" for name, _ in message["headers"])
            if unknown:
                cycle.chunked_encoding, cycle.expected_content_length = False, maxsize
        elif unknown and not message.get("more_body"):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = unframed  # type: ignore[method-assign]
