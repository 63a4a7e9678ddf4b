"""The relay, threads of this process between ggml and an RPC server: they answer in place of a lost server.

ggml ends its process when a server is lost, and waits for ever for a server that has stopped, so it must not notice.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from backbay import BackendUnavailableError

(ALLOC_BUFFER, GET_ALIGNMENT, GET_MAX_SIZE, BUFFER_GET_BASE, FREE_BUFFER, BUFFER_CLEAR, SET_TENSOR, SET_TENSOR_HASH,
 GET_TENSOR, COPY_TENSOR, GRAPH_COMPUTE, GET_DEVICE_MEMORY, INIT_TENSOR, GET_ALLOC_SIZE, HELLO, DEVICE_COUNT,
 GRAPH_RECOMPUTE, MEMSET_TENSOR) = range(18)  # fmt: skip
ANSWERS = {
    ALLOC_BUFFER: 16, GET_ALIGNMENT: 8, GET_MAX_SIZE: 8, BUFFER_GET_BASE: 8, SET_TENSOR_HASH: 1, COPY_TENSOR: 1,
    GET_DEVICE_MEMORY: 16, GET_ALLOC_SIZE: 8, HELLO: 28, DEVICE_COUNT: 4,
}  # fmt: skip
"""Bytes of a server's answer, by command; the request itself gives the length for GET_TENSOR."""
EMPTY_ANSWERS = {4: (FREE_BUFFER, BUFFER_CLEAR, INIT_TENSOR), 7: ()}
"""Commands that get an empty answer, by major version of the protocol; other versions are unknown."""
MADE_UP = {GET_ALIGNMENT: 32, GET_MAX_SIZE: 1 << 62, BUFFER_GET_BASE: 4096, SET_TENSOR_HASH: 1, COPY_TENSOR: 1,
           DEVICE_COUNT: 1}  # fmt: skip
"""Answers in place of a lost server, where zeros would not do. Zeros refuse allocations, and are read as data."""
CAPABILITIES = bytes(24)  # none: a faster transport would bypass the relay
PIECE = 1 << 20
LONGEST_FIXED = max(ANSWERS.values())
GREETING_SECONDS = 5.0  # a server that serves another process does not greet


class ServerLostError(Exception):
    """The server is gone, or sent a wrong answer."""


@final
class RpcRelay:
    """A port of this process on which ggml finds a server. It serves until the process ends.

    `patience` are the seconds that the server may take for an answer, a compute included. `lost` are the reasons why
    connections were lost that ggml has not closed yet, by number.
    """

    def __init__(self, endpoint: str, patience: float) -> None:
        host, _, port = endpoint.rpartition(":")
        self.server, self.patience = (host, int(port)), patience
        self.lost: dict[int, str] = {}
        self.losses: list[str] = []  # the reasons since the latest session began
        try:
            with connect(self.server) as first:
                self.peer = first.getpeername()
                self.hello = greet(first)
            if self.hello[0] not in EMPTY_ANSWERS:
                known = ", ".join(map(str, EMPTY_ANSWERS))
                raise ServerLostError(f"it speaks version {self.hello[0]} of the protocol; known are {known}")
            self._listener = socket.create_server(("127.0.0.1", 0))
            threading.Thread(target=self._accept, daemon=True).start()
        except (OSError, ServerLostError, RuntimeError) as error:
            raise BackendUnavailableError(
                f"no RPC server at {endpoint}: {error or 'it does not answer'}"
            ) from None
        self.port = self._listener.getsockname()[1]
        self.protocol = ".".join(map(str, self.hello[:3]))

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def after_fork(self) -> None:
        """In a forked child: let go of the parent's connections, which the server would go on serving for the child."""
        here = ("127.0.0.1", self.port)
        nothing = os.open(os.devnull, os.O_RDWR)
        folder = Path("/proc/self/fd")
        for file in list((folder if folder.exists() else Path("/dev/fd")).iterdir()):
            number = int(file.name)
            own, other = _addresses(number)
            if own == here or other in (here, self.peer):
                os.dup2(nothing, number, inheritable=False)  # whoever holds the number may still close it
        os.close(nothing)

    def _accept(self) -> None:
        for number in itertools.count():
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = RelayConnection(self, client, number)
            try:
                threading.Thread(target=connection.serve, daemon=True).start()
            except RuntimeError:  # the system gives no thread; ggml hardly ever has two connections at once
                connection.serve()


def _addresses(number: int) -> tuple[Any, Any]:
    """The addresses of both ends of a connection, None for what is no socket or not connected."""
    own = other = None
    with suppress(OSError):
        found = socket.socket(fileno=number)
        with suppress(OSError):
            own = found.getsockname()
            other = found.getpeername()
        found.detach()
    return own, other


def connect(server: tuple[str, int]) -> socket.socket:
    made = socket.create_connection(server, GREETING_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def greet(server: socket.socket) -> bytes:
    """The server's greeting, with its version, but without its capabilities."""
    server.settimeout(GREETING_SECONDS)
    try:
        server.sendall(struct.pack("<BQ", HELLO, len(CAPABILITIES)) + CAPABILITIES)
        if struct.unpack("<Q", read_exactly(server, 8))[0] != ANSWERS[HELLO]:
            raise ServerLostError("it is no known RPC server of ggml")
        return read_exactly(server, ANSWERS[HELLO])[:4] + CAPABILITIES
    except TimeoutError:
        raise ServerLostError(
            "it does not answer; does it serve another process, or is it stopped?"
        ) from None


@final
class RelayConnection:
    """A connection from ggml, and one to the server until it is lost."""

    def __init__(self, relay: RpcRelay, client: socket.socket, number: int) -> None:
        self.relay, self.client, self.number = relay, client, number
        self.upstream: socket.socket | None = None

    def serve(self) -> None:
        try:
            with self.client:
                while True:
                    command, size = struct.unpack("<BQ", read_exactly(self.client, 9))
                    if command == HELLO:
                        read_exactly(self.client, size)
                        self.begin()
                    else:
                        self.exchange(command, size)
        except (OSError, ServerLostError):
            self.relay.lost.pop(self.number, None)  # ggml closed the connection
        finally:
            if self.upstream is not None:
                self.upstream.close()

    def begin(self) -> None:
        hello = self.relay.hello
        try:
            self.upstream = connect(self.relay.server)
            if greet(self.upstream) != hello:
                raise ServerLostError("it came back with another version of the protocol")
        except (OSError, ServerLostError) as error:
            self.lose(error)
        self.client.sendall(struct.pack("<Q", len(hello)) + hello)

    def exchange(self, command: int, size: int) -> None:
        """Pass one command on, and its answer back."""
        if self.upstream is not None:
            self.upstream.settimeout(self.relay.patience)
        self.send(struct.pack("<BQ", command, size))
        tail = b""
        for piece in data_pieces(self.client, size):
            tail = (tail + piece)[-8:]
            self.send(piece)
        expected = struct.unpack("<Q", tail)[0] if command == GET_TENSOR else ANSWERS.get(command)
        if expected is not None or command in EMPTY_ANSWERS[self.relay.hello[0]]:
            self.answer(command, expected or 0)

    def send(self, data: bytes) -> None:
        if self.upstream is not None:
            try:
                self.upstream.sendall(data)
            except OSError as error:
                self.lose(error)

    def answer(self, command: int, expected: int) -> None:
        """Send the server's answer; what it does not send is made up."""
        made_up = MADE_UP.get(command, 0).to_bytes(expected, "little") if expected <= LONGEST_FIXED else b""
        announced = self.receive(8)
        if announced is not None and struct.unpack("<Q", announced)[0] != expected:
            self.lose(ServerLostError("its answer has the wrong length"))
        self.client.sendall(struct.pack("<Q", expected))
        sent = 0
        while sent < expected:
            rest = min(PIECE, expected - sent)
            piece = self.receive(rest) or made_up[sent:] or bytes(rest)
            self.client.sendall(piece)
            sent += len(piece)

    def receive(self, size: int) -> bytes | None:
        """The next bytes from the server; None if it is lost."""
        if self.upstream is not None:
            try:
                return read_exactly(self.upstream, size)
            except (OSError, ServerLostError) as error:
                self.lose(error)
        return None

    def lose(self, error: Exception) -> None:
        if self.upstream is not None:
            self.upstream.close()
            self.upstream = None
        reason = str(error) or "it closed the connection"
        if isinstance(error, TimeoutError):
            reason = f"it did not answer within {self.relay.patience:g} s (the option rpc_timeout)"
        self.relay.lost[self.number] = reason  # before anything is answered in the server's place
        self.relay.losses.append(reason)


def data_pieces(source: socket.socket, size: int) -> Iterator[bytes]:
    while size:
        piece = source.recv(min(size, PIECE))
        if not piece:
            raise ServerLostError("it closed the connection")
        size -= len(piece)
        yield piece


def read_exactly(source: socket.socket, size: int) -> bytes:
    return b"".join(data_pieces(source, size))
