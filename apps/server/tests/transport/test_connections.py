"""Connections: headers without end, silence, clients that do not read, and 10,000 that say nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from patience import PATIENCE
from served import connected, read_limited, rest, served
from starlette.types import Receive, Scope, Send

from backbay_server.transport import request_checks
from backbay_server.transport.connections import BoundedConnection
from backbay_server.transport.request_checks import BodySizeCheck
from backbay_server.transport.server import connection_limit

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
ended = threading.Event()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body; /endless answers until the client leaves, /long for a second."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    if await read_limited(scope, receive, send) is None:
        ended.set()
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/endless":
        await endless(receive, send)
    if scope["path"] == "/long":
        for _ in range(20):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            await asyncio.sleep(0.05)
    if scope["path"] == "/parts":
        for part in (b"one", b"", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"fine"})


async def endless(receive: Receive, send: Send) -> None:
    leaving = asyncio.ensure_future(receive())
    while not leaving.done():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await asyncio.sleep(0)
    assert leaving.result()["type"] == "http.disconnect"
    ended.set()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    ended.clear()
    with served(BodySizeCheck(app, 1 << 20)) as found:
        yield found
        monkeypatch.undo()
        assert httpx.get(f"http://{found[0]}:{found[1]}/health", timeout=PATIENCE).text == "fine"


def sent(connection: socket.socket, parts: list[bytes], pause: float = 0) -> int:
    """How many parts can be sent before the server ends the connection."""
    with connection:
        for number, part in enumerate(parts):
            try:
                connection.sendall(part)
            except ConnectionError:
                return number
            time.sleep(pause)
    return len(parts)


@pytest.mark.fault("a client sends headers without end", "431, and the connection is closed")
@pytest.mark.parametrize(
    "begin",
    [b"GET /", GET + b"x: ", GET + b"transfer-encoding: chunked\r\n\r\n0\r\nx: "],
    ids=["line", "value", "trailer"],
)
def test_headers_without_end_are_refused(begin: bytes, address: tuple[str, int]) -> None:
    connection = connected(address, begin)
    assert sent(connection, [b"y" * 10_000] * 1000) < 1000


def test_many_headers_are_refused(address: tuple[str, int]) -> None:
    connection = connected(address, GET + b"a: b\r\n" * 9000)
    connection.sendall(b"a: b\r\n" * 9000)
    assert rest(connection).startswith((b"HTTP/1.1 431 ", b""))


@pytest.mark.fault(
    "a client connects and sends nothing, or too slowly", "408 after a while; others are served"
)
@pytest.mark.parametrize(
    ("sent", "limit"),
    [
        (b"", "header_seconds"),
        (b"GET / HT", "header_seconds"),
        (GET, "header_seconds"),
        (GET + b"content-length: 5\r\n\r\nab", "body_seconds"),
    ],
)
def test_silence_ends_a_connection(
    sent: bytes, limit: str, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("header_seconds", "body_seconds", "stalled_seconds"):
        monkeypatch.setattr(BoundedConnection, name, 0.5 if name == limit else 2 * PATIENCE)
    begun = time.monotonic()
    assert rest(connected(address, sent)).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begun > 0.4
    if sent.endswith(b"ab"):
        assert ended.wait(300)


def test_a_byte_at_a_time_does_not_prolong_the_headers(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "header_seconds", 0.5)
    connection = connected(address)
    headers = [bytes([byte]) for byte in GET * 10]
    assert sent(connection, headers, pause=0.05) < len(headers)


@pytest.mark.fault("a client sends one byte of its body a second", "408 after 20 s; others are served")
@pytest.mark.parametrize(("size", "ends"), [(1, True), (4096, False)])
def test_a_body_of_a_byte_at_a_time_ends_a_connection(
    size: int, ends: bool, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "slow_seconds", 1.0)
    connection = connected(address, GET + b"connection: close\r\ncontent-length: %d\r\n\r\n" % (60 * size))
    for _ in range(60):
        try:
            connection.sendall(b"x" * size)
        except ConnectionError:
            break
        time.sleep(0.05)
    assert rest(connection).startswith(b"HTTP/1.1 408 " if ends else b"HTTP/1.1 200 ")


@pytest.mark.fault("a client sends a body that is too large before it reads", "413, and no reset")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_all_first_sees_the_refusal(chunked: bool, address: tuple[str, int]) -> None:
    size, part = 32 << 20, b"x" * (1 << 20)
    head = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % size
    connection = connected(address, GET + head + b"\r\n\r\n")
    for _ in range(size // len(part)):
        connection.sendall(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
    if chunked:
        connection.sendall(b"0\r\n\r\n")
    found = b""
    while data := connection.recv(1 << 16):  # a reset would be an error
        found += data
    assert found.startswith(b"HTTP/1.1 413 ")
    connection.close()


@pytest.mark.fault("a body begins behind an answer that runs, and stops", "the answer is whole, then 408")
def test_a_body_behind_an_answer_does_not_end_it(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slow_seconds", "body_seconds"):
        monkeypatch.setattr(BoundedConnection, name, 0.2)
    long = GET.replace(b"/health", b"/long") + b"\r\n"
    found = rest(connected(address, long + GET + b"content-length: 5000\r\n\r\n{"))
    whole, _, after = found.partition(b"fine\r\n0\r\n\r\n")
    assert whole.count(b"part") == 20
    assert after.startswith(b"HTTP/1.1 408 ")


def test_a_refused_body_that_is_whole_is_not_waited_for(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_checks, "LINGER_SECONDS", 2 * PATIENCE)
    size = (1 << 20) + 1
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size)
    connection = connected(address, GET + b"transfer-encoding: chunked\r\n\r\n" + body)
    assert rest(connection).startswith(b"HTTP/1.1 413 ")


def test_a_refused_body_is_not_taken_for_ever(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_checks, "LINGER_SECONDS", 0.2)
    connection = connected(address, GET + b"content-length: %d\r\n\r\n" % (1 << 30))
    assert rest(connection).startswith(b"HTTP/1.1 413 ")


@pytest.mark.fault(
    "a client takes one byte a second of its answer", "its connection is ended, and nobody waits for it"
)
def test_a_client_that_reads_too_slowly_is_left(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedConnection, "stalled_seconds", 0.5)
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(address)
    made.sendall(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _ in range(20):
        made.recv(1)
        time.sleep(0.05)
    assert ended.wait(300)
    made.close()


@pytest.mark.fault("a client sends a body of 1 GB", "413 at once, and nothing of it is kept")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gigabyte_is_refused_at_once(chunked: bool, address: tuple[str, int]) -> None:
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1 << 14):
            sent += 1 << 16
            yield b"x" * (1 << 16)

    headers = {} if chunked else {"content-length": str(1 << 30)}
    answer = httpx.post(
        f"http://{address[0]}:{address[1]}/", content=body(), headers=headers, timeout=PATIENCE
    )
    assert answer.status_code == 413
    assert sent < 1 << 28


def test_pipelined_and_later_requests_share_a_connection(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connected(address, GET + b"\r\n")
    found = connection.recv(1 << 16)
    monkeypatch.setattr(BoundedConnection, "header_seconds", 0.2)  # whole headers need no wait
    connection.sendall((GET + b"\r\n") * 2)
    while found.count(b"fine") < 3:
        found += connection.recv(1 << 16)
    time.sleep(0.5)  # silence between requests is no fault
    connection.sendall(GET + b"connection: close\r\n\r\n")
    assert (found + rest(connection)).count(b"fine") == 4


@pytest.mark.parametrize(
    "line", [b"\x00\x01\x02\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
def test_what_is_no_http_is_refused(line: bytes, address: tuple[str, int]) -> None:
    assert rest(connected(address, line)).startswith(b"HTTP/1.1 400 ")


def test_an_upgrade_is_answered_as_a_plain_request(address: tuple[str, int]) -> None:
    asked = GET + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
    connection = connected(address, asked)
    assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    connection.close()


@pytest.mark.parametrize(("files", "expected"), [(1 << 20, (1 << 20) - 256), (1024, 768), (256, 128), (1, 1)])
def test_some_files_are_left_for_models_and_logs(files: int, expected: int) -> None:
    assert connection_limit(files) == expected


def test_an_old_client_gets_no_chunks(address: tuple[str, int]):
    old, new = b"GET /parts HTTP/1.0\r\n\r\n", b"GET /parts HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for line, chunked in ((old, False), (new, True)):
        head, _, body = rest(connected(address, line)).partition(b"\r\n\r\n")
        assert (b"transfer-encoding: chunked" in head) == chunked
        assert body == (b"3\r\none\r\n3\r\ntwo\r\n4\r\nfine\r\n0\r\n\r\n" if chunked else b"onetwofine")
