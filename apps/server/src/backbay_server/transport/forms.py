"""Forms: bodies of multipart/form-data, as clients send files, decoded as the API's structs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar, final

import msgspec
from msgspec import inspect
from starlette.types import Scope

from ..errors import InvalidRequestError
from .request_checks import header_value

T = TypeVar("T")
MOST_PARTS: Final = 256
MOST_HEAD: Final = 8 << 10  # bytes of a part's headers, and of the body's type
LINE: Final = b"\r\n"
_BOUNDARY: Final = re.compile(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_NAME: Final = re.compile(
    rb'(?:^|\r\n)content-disposition:[ \t]*form-data[ \t]*;(?:[^\r\n]*?[; \t])?name=(?:"([^"\r\n]*)"|([^\s;"]+))',
    re.IGNORECASE,
)


@final
class FormReader(Generic[T]):
    """Reads forms as structs of one type. A field of bytes is a file; one of a list may be sent several times.

    Names may end in brackets, as OpenAI's clients write those of lists and of objects' members. An empty text asks for nothing.
    """

    def __init__(self, kind: type[T]) -> None:
        info = inspect.type_info(kind)
        assert isinstance(info, inspect.StructType)
        kinds = {field.encode_name: _kinds(field.type) for field in info.fields}
        self._kind = kind
        self._files = {name for name, some in kinds.items() if inspect.BytesType in some}
        self._lists = {name for name, some in kinds.items() if inspect.ListType in some}

    def read(self, scope: Scope, body: bytes) -> T:
        """The struct; msgspec's errors, or InvalidRequestError."""
        found: dict[str, Any] = {}
        for written, content in form_parts(b"".join(header_value(scope, b"content-type")), body):
            name = _text(written).partition("[")[0]
            if name in self._lists:
                found.setdefault(name, []).append(_text(content))
            elif name in found:
                raise InvalidRequestError(f"{name} is given twice", param=name)
            elif name in self._files:
                found[name] = content
            elif content:
                found[name] = _text(content)
        return msgspec.convert(found, self._kind, strict=False)


def form_parts(kind: bytes, body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and contents of a form's parts; InvalidRequestError if it is malformed."""
    boundary = _BOUNDARY.search(kind[:MOST_HEAD])
    if boundary is None or not kind.lower().startswith(b"multipart/form-data"):
        raise InvalidRequestError("the body must be multipart/form-data with a boundary")
    delimiter = LINE + b"--" + (boundary[1] or boundary[2])
    at = len(delimiter) - len(LINE) if body.startswith(delimiter[len(LINE) :]) else _after(body, delimiter, 0)
    for _ in range(MOST_PARTS):
        if body.startswith(b"--", at):
            return
        begin = body.find(LINE + LINE, at, at + MOST_HEAD)
        named = _NAME.search(body[at:begin]) if begin >= 0 and body.startswith(LINE, at) else None
        if named is None:
            raise InvalidRequestError("a part of the form has no name, or headers without end")
        begin, at = begin + 2 * len(LINE), _after(body, delimiter, begin + 2 * len(LINE))
        yield named[1] if named[2] is None else named[2], body[begin : at - len(delimiter)]
    raise InvalidRequestError(f"the form has more than {MOST_PARTS} parts")


def _after(body: bytes, delimiter: bytes, begin: int) -> int:
    """Where the next delimiter ends."""
    found = body.find(delimiter, begin)
    if found < 0:
        raise InvalidRequestError("the form ends too early: its last boundary is missing")
    return found + len(delimiter)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the names and texts of a form must be UTF-8: {error}") from None


def _kinds(kind: inspect.Type) -> set[type[inspect.Type]]:
    """The types that a field may have."""
    if isinstance(kind, inspect.Metadata):
        return _kinds(kind.type)
    if isinstance(kind, inspect.UnionType):
        return set().union(*map(_kinds, kind.types))
    return {type(kind)}
