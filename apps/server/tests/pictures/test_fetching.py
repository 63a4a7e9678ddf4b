"""Fetching pictures: attacks by hosts on loopback, which stands for the public internet."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from backbay_server.errors import InvalidRequestError
from backbay_server.pictures import PictureFetcher
from backbay_server.pictures.addresses import IP

PUBLIC, PRIVATE = ip_address("127.0.0.1"), ip_address("127.0.0.2")
PICTURE = b"\x89PNG of some kind"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(PICTURE), PICTURE)
Serve = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


class Hosts:
    """Names and their addresses, and the hosts that listen there; by default each name is public."""

    def __init__(self) -> None:
        self.port, self.asked = 0, list[str]()
        self.addresses: dict[str, Sequence[IP]] = {}
        self.looked_up: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[IP]:
        self.looked_up.append(host)
        found = self.addresses.get(host, [PUBLIC])
        self.addresses[host] = found[1:] or found if host == "rebound.test" else found
        return found[:1] if host == "rebound.test" else found

    def fetcher(self, **more: Any) -> PictureFetcher:
        names = [f"{name}.test:{self.port}" for name in ("pictures", "other", "rebound", "private")]
        how = {"seconds": PATIENCE, **more}
        return PictureFetcher(names, resolve=self.resolve, may_reach=lambda ip: ip == PUBLIC, **how)

    async def fetch(self, url: str, *, most: int = 1 << 20, **more: Any) -> bytes:
        messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": self.at(url)}}]}]
        [message] = await self.fetcher(most_bytes=most, **more).fetched(messages)
        [part] = message["content"]
        assert part["type"] == "image"
        file: bytes = part["image"]
        return file

    def at(self, url: str) -> str:
        return url.replace(".test", f".test:{self.port}")


@asynccontextmanager
async def hosts(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Hosts]:
    """Hosts that answer by a function, which gets the target of a request."""
    made = Hosts()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            made.asked.append(head)
            await serve(head.split(" ")[1], writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


def says(**answers: bytes) -> Serve:
    """Answers by the first word of the path; otherwise with the picture."""

    async def serve(target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answers.get(target.strip("/"), OK))

    return serve


def fetch(url: str, serve: Serve, **more: Any) -> tuple[bytes, Hosts]:
    async def whole() -> tuple[bytes, Hosts]:
        async with hosts(serve) as made:
            made.addresses["private.test"] = [PRIVATE]
            made.addresses["rebound.test"] = [PUBLIC, PRIVATE]
            location = f"http://private.test:{made.port}/x"
            made.at(location)
            return await made.fetch(url, **more), made

    return asyncio.run(whole())


def sends_on(to: str, status: int = 302) -> Serve:
    """Sends on to an address, whose port is the host's own; /end is the picture."""

    async def serve(target: str, writer: asyncio.StreamWriter) -> None:
        port = writer.get_extra_info("sockname")[1]
        location = to.replace(".test", f".test:{port}")
        answer = f"HTTP/1.1 {status} On\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()
        writer.write(OK if target == "/end" else answer)

    return serve


def test_a_picture_is_fetched_and_nothing_else_is_told() -> None:
    found, made = fetch("http://pictures.test/a%20b?c=d", says())
    assert found == PICTURE
    [head] = made.asked
    assert head.startswith(f"GET /a%20b?c=d HTTP/1.1\r\nHost: pictures.test:{made.port}\r\n")
    assert not any(name in head.lower() for name in ("cookie", "authorization", "referer", "x-forwarded"))


def test_chunks_early_hints_and_an_end_without_a_length_are_read() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\x89PNG \r\n2\r\nof\r\n0\r\n\r\n"
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
    endless = b"HTTP/1.0 200 OK\r\n\r\nabc"
    serve = says(chunked=chunked, hints=hints + OK, endless=endless)
    assert fetch("http://pictures.test/chunked", serve)[0] == b"\x89PNG of"
    assert fetch("http://pictures.test/hints", serve)[0] == PICTURE
    assert fetch("http://pictures.test/endless", serve)[0] == b"abc"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["/end", "http://other.test/end", "//other.test/end"])
def test_a_redirect_to_an_allowed_host_is_followed(status: int, to: str) -> None:
    assert fetch("http://pictures.test/", sends_on(to, status))[0] == PICTURE


@pytest.mark.fault("a picture's host redirects to a private address", "400, and nothing is sent there")
@pytest.mark.parametrize(
    "to",
    [
        "http://private.test/end",
        "http://127.0.0.1/end",
        "http://127.0.0.2/end",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/end",
        "http://2130706433/end",
        "http://localhost/end",
        "http://unknown.test/end",
        "file:///etc/passwd",
        "http://pictures.test@127.0.0.1/",
        "javascript:0",
        "",
    ],
)
def test_a_redirect_elsewhere_is_refused(to: str) -> None:
    async def whole() -> None:
        async with hosts(sends_on(to)) as made:
            made.addresses["private.test"] = [PRIVATE]
            with pytest.raises(InvalidRequestError):
                await made.fetch("http://pictures.test/")
            assert len(made.asked) == 1

    asyncio.run(whole())


@pytest.mark.fault("a picture's host redirects without end", "400 after 3")
def test_redirects_have_an_end() -> None:
    with pytest.raises(InvalidRequestError, match="more than 3 times"):
        fetch("http://pictures.test/", sends_on("/again"))


@pytest.mark.fault("a picture's host resolves to a private address", "400, nothing is connected to")
@pytest.mark.parametrize("addresses", [[PRIVATE], [], [ip_address("10.0.0.1"), ip_address("::1")]])
def test_a_name_of_a_private_address_is_refused(addresses: list[IP]) -> None:
    async def whole() -> None:
        async with hosts(says()) as made:
            made.addresses["private.test"] = addresses
            with pytest.raises(InvalidRequestError, match="no public address"):
                await made.fetch("http://private.test/")
            assert not made.asked

    asyncio.run(whole())


@pytest.mark.fault(
    "a name is bound to a private address after it was checked", "the checked address is asked"
)
def test_a_name_is_looked_up_once_for_a_connection() -> None:
    found, made = fetch("http://rebound.test/", says())
    assert found == PICTURE
    assert made.looked_up == ["rebound.test"]
    with pytest.raises(
        InvalidRequestError, match="no public address"
    ):  # at the redirect it is looked up again
        fetch("http://rebound.test/", sends_on("http://rebound.test/end"))


def test_of_several_addresses_the_public_ones_are_tried() -> None:
    async def whole() -> None:
        async with hosts(says()) as made:
            made.addresses["pictures.test"] = [PRIVATE, PUBLIC]
            assert await made.fetch("http://pictures.test/") == PICTURE

    asyncio.run(whole())


@pytest.mark.fault("a picture's host sends more than the limit", "400, and no more is read")
@pytest.mark.parametrize(
    "length", [b"Content-Length: 1000000000\r\n", b"Transfer-Encoding: chunked\r\n", b""]
)
def test_a_file_has_a_limit(length: bytes) -> None:
    sent = 0

    async def serve(target: str, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n" % length)
        piece = b"x" * 65536
        for _ in range(2000):
            writer.write(b"10000\r\n%b\r\n" % piece if b"chunked" in length else piece)
            await writer.drain()
            sent += len(piece)

    with pytest.raises(InvalidRequestError, match="more than 1000000 bytes"):
        fetch("http://pictures.test/", serve, most=1_000_000)
    assert sent < 60_000_000


def test_the_pictures_of_a_request_share_the_limit() -> None:
    async def whole() -> None:
        async with hosts(says()) as made:
            parts = [
                {"type": "image_url", "image_url": {"url": made.at(f"http://pictures.test/{n}")}}
                for n in range(9)
            ]
            again = [*parts, *parts]  # fetched once
            fetcher = made.fetcher(most_bytes=9 * len(PICTURE))
            [message] = await fetcher.fetched([{"role": "user", "content": again}])
            assert [part["image"] for part in message["content"]] == [PICTURE] * 18
            assert len(made.asked) == 9
            with pytest.raises(InvalidRequestError, match="bytes"):
                await made.fetcher(most_bytes=9 * len(PICTURE) - 1).fetched(
                    [{"role": "user", "content": parts}]
                )

    asyncio.run(whole())


@pytest.mark.fault("a picture's host sends headers without end", "400")
@pytest.mark.parametrize(
    "begin",
    [b"", b"HTTP/1.1 200 OK\r\nx: ", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: "],
    ids=["no HTTP", "header", "trailer"],
)
def test_headers_have_a_limit(begin: bytes) -> None:
    async def serve(target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        for _ in range(2000):
            writer.write(b"y" * 65536)
            await writer.drain()

    with pytest.raises(InvalidRequestError, match=r"no HTTP|headers without end"):
        fetch("http://pictures.test/", serve)


@pytest.mark.fault("a picture's host is slow, or silent", "400 after 10 s; nobody else waits")
@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_a_slow_host_is_left(begin: bytes) -> None:
    async def serve(target: str, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        for _ in range(200):
            writer.write(b"x" if begin else b"")
            await asyncio.sleep(0.05)

    with pytest.raises(InvalidRequestError, match=r"in 0\.5 s"):
        fetch("http://pictures.test/", serve, seconds=0.5)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n", "answers with 404"),
        (b"HTTP/1.1 204 None\r\n\r\n", "answers with 204"),
        (b"HTTP/1.1 302 On\r\nContent-Length: 0\r\n\r\n", "answers with 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab", "too early"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", "encoding"),
        (b"", "too early"),
        (b"SSH-2.0-OpenSSH_9\r\n", "no HTTP"),
    ],
)
def test_other_answers_are_refused(answer: bytes, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        fetch("http://pictures.test/x", says(x=answer))


def test_a_host_where_nobody_listens_is_refused() -> None:
    async def whole() -> None:
        async with hosts(says()) as made:
            pass
        with pytest.raises(InvalidRequestError, match="cannot be reached"):
            await made.fetch("http://pictures.test/")

    asyncio.run(whole())


def test_without_allowed_hosts_nothing_is_fetched() -> None:
    messages = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://pictures.test/"}}]}
    ]

    async def never(host: str, port: int) -> Sequence[IP]:
        raise AssertionError

    assert asyncio.run(PictureFetcher([], resolve=never).fetched(messages)) is messages


@pytest.mark.fault("a picture's host has a certificate of another", "400, and the request is not sent")
def test_a_certificate_must_be_the_hosts_own(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=other.test",
        "-days",
        "1",
    ]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs openssl")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)

    async def whole() -> None:
        async with hosts(says(), tls) as made:
            with pytest.raises(InvalidRequestError, match="cannot be reached"):
                await made.fetch("https://pictures.test/")
            assert not made.asked

    asyncio.run(whole())
