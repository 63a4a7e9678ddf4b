"""An application served on a free port of loopback, by a thread; and raw connections to it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from patience import PATIENCE
from starlette.types import Receive, Scope, Send

from backbay_server.errors import RequestTooLargeError, error_response
from backbay_server.transport.request_checks import RequestDrain
from backbay_server.transport.server import Server, bind_socket


@contextmanager
def served(app: Any, drain: RequestDrain | None = None) -> Iterator[tuple[str, int]]:
    """The address at which an application is served."""
    listening = threading.Event()
    made = bind_socket("127.0.0.1", 0)
    servers: list[Server] = []

    async def cancel() -> None: ...

    def serve() -> None:
        server = Server(
            app, drain or RequestDrain(), drain_seconds=PATIENCE, cancel=cancel, listening=listening.set
        )
        servers.append(server)
        server.run([made])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert listening.wait(300)
        yield made.getsockname()
    finally:
        servers[0].should_exit = True
        thread.join(300)
        made.close()
        assert not thread.is_alive()


async def read_limited(scope: Scope, receive: Receive, send: Send) -> int | None:
    """Read a body, and give its length; None if the client has left, or has got the error of a body that is too large."""
    count, more = 0, True
    while more:
        try:
            message = await receive()
        except RequestTooLargeError as error:
            await error_response(error, scope)(scope, receive, send)
            return None
        if message["type"] == "http.disconnect":
            return None
        count, more = count + len(message.get("body", b"")), message.get("more_body", False)
    return count


def connected(address: tuple[str, int], data: bytes = b"") -> socket.socket:
    made = socket.create_connection(address, timeout=300)
    made.sendall(data)
    return made


def rest(connection: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    found = b""
    try:
        while data := connection.recv(1 << 16):
            found += data
    except ConnectionError:
        pass
    connection.close()
    return found
