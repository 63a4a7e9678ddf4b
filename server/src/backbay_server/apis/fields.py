"""Fields of requests: each is declared once, with its use: taken, ignored or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Struct, inspect

from ..errors import InvalidRequestError

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Length: TypeAlias = Annotated[int, Meta(ge=-1)]  # of an answer; -1: as long as may be
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops: TypeAlias = Annotated[list[Stop], Meta(max_length=32)]
MOST_TEXTS: Final = 2048  # of one request, as OpenAI has it
MOST_TOOLS: Final = 128
USE: Final = "x-backbay"  # the key of a field's use in the schema that /openapi.json serves


class Use(NamedTuple):
    """What happens to a field. A refused field may have the values `unless`, which ask for nothing."""

    use: str
    text: str
    unless: tuple[Any, ...] = ()


def taken(text: str) -> Meta:
    """The field has its effect."""
    return _meta(Use("taken", text))


def ignored(text: str) -> Meta:
    """The field may have any value of its type, and has no effect."""
    return _meta(Use("ignored", text))


def refused(text: str, unless: Iterable[Any] = ()) -> Meta:
    """The field is a 400, unless it is absent, null or one of these values, which ask for nothing."""
    return _meta(Use("refused", text, tuple(unless)))


def _meta(use: Use) -> Meta:
    schema: dict[str, Any] = {USE: use.use}
    if use.use == "refused":
        schema["enum"] = [None, *use.unless]
    return Meta(description=use.text, extra_json_schema=schema, extra={"use": use})


@cache
def uses(kind: type) -> Mapping[str, Use]:
    """The uses of a struct's fields, by their names in JSON."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {field.encode_name: use for field in found.fields if (use := _use(field.type)) is not None}


def _use(kind: inspect.Type) -> Use | None:
    extra = kind.extra if isinstance(kind, inspect.Metadata) else None
    return extra["use"] if extra else None


def check_refused(body: Any, inside: str = "") -> None:
    """InvalidRequestError if a refused field of a struct, or of a struct in its fields, asks for anything."""
    kind: type = type(body)
    for attribute, name, use in _checked(kind):
        value = getattr(body, attribute)
        if isinstance(value, Struct):
            check_refused(value, f"{inside}{name}.")
        elif use == "refused" and value is not None and value is not UNSET:
            found = uses(kind)[name]
            if value not in found.unless:
                raise InvalidRequestError(
                    f"{inside}{name} cannot be {value!r}: {found.text}", param=f"{inside}{name}"
                )


@cache
def _checked(kind: type) -> tuple[tuple[str, str, str], ...]:
    """The fields to check: attribute, name, use."""
    if not issubclass(kind, Struct):
        return ()
    named = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    found = uses(kind)
    return tuple((attribute, name, found[name].use if name in found else "") for attribute, name in named)
