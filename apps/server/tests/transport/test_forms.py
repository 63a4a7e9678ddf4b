"""Forms: what clients write is read, and whatever else comes is an error that says what is wrong."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, ValidationError

from backbay_server.errors import InvalidRequestError
from backbay_server.transport.forms import MOST_PARTS, FormReader, form_parts

KIND = b"multipart/form-data; boundary=xx"


class Sent(Struct, forbid_unknown_fields=True):
    file: Annotated[bytes, Meta(max_length=1 << 20)] | None = None
    name: str | None = None
    share: Annotated[float, Meta(ge=0)] | None = None
    stream: bool | None = None
    several: list[str] | None = None


def read(body: bytes, kind: bytes = KIND) -> Sent:
    return FormReader(Sent).read({"headers": [(b"content-type", kind)]}, body)


def part(name: str, content: bytes) -> bytes:
    return f'--xx\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n"


@given(st.binary(max_size=200), st.text(max_size=20))
def test_what_httpx_writes_is_read(content: bytes, text: str) -> None:
    fields: Any = {"name": text, "share": "0.25", "stream": "true", "several[]": ["a", "b"]}
    request = httpx.Request("POST", "http://x", data=fields, files={"file": ("my name=a.wav", content)})
    kind = request.headers["content-type"].encode()
    assert read(request.read(), kind) == Sent(content, text or None, 0.25, True, ["a", "b"])


def test_texts_before_and_after_a_form_are_not_of_it() -> None:
    assert read(b"before\r\n" + part("name", b"x") + b"--xx--\r\nafter --xx") == Sent(name="x")
    quoted = b'Multipart/Form-Data; charset=utf-8; Boundary="a b"'
    body = b"--a b\r\nX-Y: 1\r\ncontent-disposition: FORM-DATA;name=name\r\n\r\ny\r\n--a b--"
    assert read(body, quoted) == Sent(name="y")


@pytest.mark.fault("a form is damaged, or asks for what no form has", "400 that says what is wrong")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "ends too early"),
        (b"--xx", "no name"),
        (b"--xx\r\n", "no name"),
        (part("name", b"x"), "ends too early"),
        (part("name", b"x")[:-2], "ends too early"),
        (b"--xx\r\n\r\nx\r\n--xx--", "no name"),
        (b'--xx\r\nContent-Disposition: form-data; filename="name=x"\r\n\r\nx\r\n--xx--', "no name"),
        (b"--xx\r\nA: " + b"x" * 10_000 + b"\r\n\r\nx\r\n--xx--", "headers without end"),
        (part("name", b"x") * 2 + b"--xx--", "given twice"),
        (part("name", b"\xff") + b"--xx--", "UTF-8"),
        (part("several", b"x") * (MOST_PARTS + 1) + b"--xx--", f"more than {MOST_PARTS} parts"),
    ],
)
def test_a_malformed_form_is_an_error(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        read(body)


@pytest.mark.parametrize(
    "kind", [b"", b"application/json", b"multipart/form-data", b"multipart/mixed; boundary=xx"]
)
def test_another_type_of_body_is_an_error(kind: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="multipart/form-data"):
        read(part("name", b"x") + b"--xx--", kind)


@pytest.mark.parametrize(
    "fields", [("share", b"warm"), ("share", b"-1"), ("stream", b"yes?"), ("other", b"x")]
)
def test_values_are_checked(fields: tuple[str, bytes]) -> None:
    with pytest.raises(ValidationError):
        read(part(*fields) + b"--xx--")


@given(st.binary(max_size=300))
def test_no_body_is_more_than_an_error(body: bytes) -> None:
    for each in (body, b"--xx\r\n" + body, part("file", body)):
        with suppress(InvalidRequestError, ValidationError):
            read(each)


def test_no_body_takes_long() -> None:
    begin = time.perf_counter()
    for body in (
        b"\r\n--x" * 2_000_000,
        b"--xx\r\n" * 1_000_000,
        part("", b"") * 100_000,
        b"--xx" + b" name=" * 10**6,
    ):
        with pytest.raises(InvalidRequestError):
            list(form_parts(KIND, body))
    head = b"--xx\r\nContent-Disposition: form-data;" + b" ;" * 4000 + b"\r\n\r\n\r\n--xx--"
    with pytest.raises(InvalidRequestError):
        list(form_parts(KIND, head * 100))
    assert time.perf_counter() - begin < 20
