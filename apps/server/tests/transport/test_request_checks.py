"""Keys, hosts, origins, and the limit of bodies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import read_limited
from starlette.types import ASGIApp, Receive, Scope, Send

from backbay import OptionError
from backbay_server.transport.request_checks import (
    MOST_BYTES,
    BodySizeCheck,
    HostCheck,
    KeyCheck,
    OriginCheck,
    read_keys,
)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the number of bytes that came."""
    count = await read_limited(scope, receive, send)
    if count is None:
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(count).encode()})


def ask(app: ASGIApp, method: str = "GET", path: str = "/v1/models", **given: Any) -> httpx.Response:
    async def whole() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            return await client.request(method, path, **given)

    return asyncio.run(whole())


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer two"},
        {"authorization": "bearer  one "},
        {"x-api-key": "one"},
        {"api-key": "two"},
    ],
)
def test_a_key_opens_all_routes(headers: dict[str, str]) -> None:
    assert ask(KeyCheck(echo, ["one", "two"]), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer three"},
        {"Authorization": "Basic one"},
        {"Authorization": "Bearer"},
        {"x-api-key": ""},
    ],
)
def test_without_a_key_only_open_routes_answer(headers: dict[str, str]) -> None:
    app = KeyCheck(echo, ["one", "two"])
    for path in ("/v1/models", "/v1/chat/completions", "/state", "/api/tags", "/unknown", "/health/"):
        assert ask(app, path=path, headers=headers).status_code == 401
    for path in ("/", "/health", "/ready", "/page/page.js"):
        assert ask(app, path=path, headers=headers).status_code == 200


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\none\n\n  two  \r\n")
    assert read_keys(path) == ("one", "two")
    path.write_text("# none yet\n")
    with pytest.raises(OptionError, match="holds no key"):
        read_keys(path)
    path.write_text("first\n" + "x" * MOST_BYTES)  # the second key would be another one, if it were cut
    with pytest.raises(OptionError, match="more than the 1048576 bytes"):
        read_keys(path)
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read_keys(tmp_path / "other")


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "127.0.0.1:80",
        "[::1]:8080",
        "192.168.1.5",
        "a.localhost",
        "my.name",
        "my.name.:80",
    ],
)
def test_own_hosts_are_served(host: str) -> None:
    assert ask(HostCheck(echo, ["My.Name"]), headers={"host": host}).status_code == 200


@pytest.mark.fault("another site's name resolves to this machine", "403 for its pages (Host is checked)")
@pytest.mark.parametrize(
    "host",
    ["evil.com", "localhost.evil.com", "127.0.0.1.evil.com:8080", "localhost@evil.com", "", "a b", "1.2.3"],
)
def test_other_hosts_are_refused(host: str) -> None:
    app = HostCheck(echo, ["my.name"])
    assert ask(app, headers={"host": host}).status_code == 403
    assert ask(app, headers=[("host", "localhost"), ("host", host)]).status_code == 403


def test_all_hosts_can_be_allowed() -> None:
    assert ask(HostCheck(echo, ["*"]), headers={"host": "any.name"}).status_code == 200


@pytest.mark.fault("a page of another site calls the server", "403, unless its origin was allowed")
@pytest.mark.parametrize(
    "origin",
    ["https://evil.com", "null", "http://localhost:8081", "http://localhost:8080.evil.com", "file://"],
)
def test_pages_of_other_origins_are_refused(origin: str) -> None:
    answer = ask(OriginCheck(echo), "POST", headers={"origin": origin}, content=b"{}")
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_pages_of_the_server_are_served() -> None:
    answer = ask(OriginCheck(echo), "POST", headers={"origin": "http://localhost:8080"})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_a_named_origin_is_served_and_told_so() -> None:
    app = OriginCheck(echo, ["https://chat.example.com/"])
    answer = ask(app, "POST", headers={"origin": "https://chat.example.com"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://chat.example.com"
    assert answer.headers["vary"] == "origin"
    asked = {
        "origin": "https://chat.example.com",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    preflight = ask(app, "OPTIONS", headers=asked)
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert (
        "access-control-allow-headers"
        not in ask(app, "OPTIONS", headers={**asked, "access-control-request-headers": "a: b"}).headers
    )


@pytest.mark.parametrize("length", ["11", f"{1 << 30}", "0" * 5000 + "1"])
def test_a_body_above_the_limit_is_refused_before_it_is_read(length: str) -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    answer = ask(BodySizeCheck(never, 10), "POST", headers={"content-length": length})
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"


def test_a_body_without_a_length_is_refused_as_soon_as_it_is_too_large() -> None:
    taken = []

    async def chunks() -> Any:
        for _ in range(100):
            taken.append(1)
            yield b"12345"

    answer = ask(BodySizeCheck(echo, 12), "POST", content=chunks())
    assert answer.status_code == 413
    assert ask(BodySizeCheck(echo, 12), "POST", content=b"1" * 12).text == "12"
