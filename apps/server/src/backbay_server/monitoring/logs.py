"""Log lines: text or JSON, written by a thread of their own, and without any text of a request."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import StringIO
from logging.handlers import QueueHandler
from queue import Full, Queue
from threading import Thread
from time import perf_counter
from typing import Any, TextIO, final
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..transport.request_ids import request_id
from .metrics import Metrics

log = logging.getLogger("backbay_server.requests")
MOST_WAITING = 10_000  # lines; further ones are dropped, so that a full disk or a full pipe stops no request
PATIENCE = 2.0  # seconds for the last lines
LONGEST_PATH = 256  # letters
QUIET = frozenset({"/health", "/ready", "/metrics", "/state"})


@contextmanager
def set_up_logging(form: str, stream: TextIO | None = None) -> Iterator[None]:
    """Log to standard error in the block: a line of text, or of JSON, for each record."""
    lines = JsonFormatter() if form == "json" else TextFormatter()
    waiting: Queue[Any] = Queue(MOST_WAITING)
    opened = _standard_error() if stream is None else stream
    writer = Thread(target=_write, args=(waiting, lines, opened), name="backbay log", daemon=True)
    logging.basicConfig(level=logging.INFO, handlers=[_Dropping(waiting)], force=True)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    writer.start()
    try:
        yield
    finally:
        with suppress(Full):  # nobody reads the lines
            waiting.put(None, timeout=PATIENCE)
        writer.join(PATIENCE)
        if stream is None and not writer.is_alive():
            with suppress(OSError):  # of a full disk
                opened.close()


def _standard_error() -> TextIO:
    """A stream of its own: a write to sys.stderr that never ends would keep the process from its end."""
    try:
        return os.fdopen(os.dup(2), "w", errors="backslashreplace")
    except OSError:  # it is closed
        return StringIO()


def _write(waiting: Queue[Any], lines: logging.Formatter, stream: TextIO) -> None:
    """Write lines, and no handler of logging's, which waits for all of them at the end."""
    while (record := waiting.get()) is not None:
        with suppress(Exception):  # a line that cannot be written is lost, and nothing else
            stream.write(lines.format(record) + "\n")
            stream.flush()


@final
class _Dropping(QueueHandler):
    """Hands records to the thread that writes; the caller never waits."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except Full:
            return


class LogFormatter(logging.Formatter):
    """Exceptions are shown by their types and places: their messages may quote a prompt."""

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's name
        parts = []
        error = ei[1]
        while error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            places = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
            parts.append(" < ".join([type(error).__name__, *reversed(places)]))
            error = error.__cause__
        return "; because of ".join(parts)


@final
class TextFormatter(LogFormatter):
    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", "\\r")


@final
class JsonFormatter(LogFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


@final
class LogMiddleware:
    """Middleware that logs a line for each request: method, route, status, time, bytes of the answer. No text."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        begun, status, sent = perf_counter(), 0, 0

        async def send_noting(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                self._metrics.answered(status)
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        finally:
            path = quote(scope["path"][:LONGEST_PATH])  # a client may write anything
            took = perf_counter() - begun
            fields = {"method": scope["method"], "path": path, "status": status}
            fields |= {"id": request_id(scope), "seconds": round(took, 4), "bytes": sent}
            shown = scope["method"], path, status, took, sent
            log.info("%s %s %s %.3f s %d bytes", *shown, extra={"fields": fields})
