"""The source of a picture or a sound: a path, the bytes of a file, a binary file, or a data: URL."""

from __future__ import annotations

import base64
import binascii
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final
from urllib.parse import unquote_to_bytes

from backbay.internals import read_regular

from .errors import RequestError


@final
@dataclass(frozen=True)
class MediaKind:
    """What a source holds.

    noun    for errors, such as "a picture"
    most    bytes of a file
    """

    noun: str
    error: type[RequestError]
    most: int

    def source(self, given: object) -> MediaFile | None:
        """The source that a user gives, read now unless it is a path; None if it is of another type."""
        if isinstance(given, str):
            if has_scheme(given, "data"):
                return MediaFile(self, f"{self.noun} of a data: URL", self._of_url(given))
            if has_scheme(given, "http") or has_scheme(given, "https"):
                raise self.error(
                    f"{reprlib.repr(given)} is not fetched; read it yourself, and give its bytes"
                )
        if isinstance(given, str | os.PathLike):
            shown = os.fsdecode(os.fspath(given))
            return MediaFile(self, shown, Path(shown))
        if isinstance(given, bytes | bytearray | memoryview):
            data = bytes(given)
            return MediaFile(self, f"{self.noun} of {len(data)} bytes", self._limited(self.noun, data))
        if callable(read := getattr(given, "read", None)):
            return self._of_file(given, read)
        return None

    def data_url(self, given: object, field: str) -> str:
        """The data: URL of a content part's field, which may be {"url": ...}."""
        url = given.get("url") if isinstance(given, Mapping) else given
        if isinstance(url, str) and has_scheme(url, "data"):
            return url
        raise self.error(
            f"{field} must be a data: URL, got {reprlib.repr(url)}; nothing is fetched from elsewhere"
        )

    def _limited(self, name: str, data: bytes) -> bytes:
        if len(data) > self.most:
            raise self.error(f"{name} has more than {self.most} bytes")
        return data

    def _of_file(self, file: object, read: Any) -> MediaFile:
        name = str(getattr(file, "name", "a file"))
        try:
            data = read(self.most + 1)
        except (OSError, ValueError) as error:
            raise self.error(f"{name} cannot be read: {error}") from error
        if not isinstance(data, bytes):
            raise self.error(f"{name} must be opened in binary mode")
        return MediaFile(self, name, self._limited(name, data))

    def _of_url(self, url: str) -> bytes:
        header, comma, body = url.partition(",")
        if not comma:
            raise self.error(f"{reprlib.repr(url)} is no data: URL: it has no comma")
        if not header.lower().rstrip().endswith(";base64"):
            self._require_room(body)
            return unquote_to_bytes(body)
        return self.decoded(body, f"{self.noun} of a data: URL")

    def decoded(self, text: str, name: str) -> bytes:
        """The bytes of a text in base64."""
        self._require_room(text)
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(f"{name} is no base64: {error}") from error

    def _require_room(self, text: str) -> None:
        if len(text) > self.most * 4 // 3 + 4:
            raise self.error(f"{self.noun} has more than {self.most} bytes")


@final
@dataclass(frozen=True)
class MediaFile:
    """A file, or the path of one, with its name for errors."""

    kind: MediaKind
    name: str
    held: bytes | Path

    def data(self) -> bytes:
        """The bytes of the file."""
        if isinstance(self.held, bytes):
            return self.held
        try:
            return read_regular(self.held, self.kind.most)
        except OSError as error:
            raise self.kind.error(f"{self.name} cannot be read: {error.strerror or error}") from error


def has_scheme(text: str, scheme: str) -> bool:
    return text[: len(scheme) + 1].lower() == scheme + ":"
