"""Fields of requests: each is declared once, with its use: taken, ignored or refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Meta

USE: Final = "x-backbay"  # the key of a field's use in the schema that /openapi.json serves


def taken(text: str) -> Meta:
    """The field has its effect."""
    return _meta("taken", text)


def ignored(text: str) -> Meta:
    """The field may have any value of its type, and has no effect."""
    return _meta("ignored", text)


def refused(text: str, unless: Iterable[Any] = ()) -> Meta:
    """The field is a 400, unless it is absent, null or one of these values, which ask for nothing."""
    return _meta("refused", text, unless=tuple(unless))


def _meta(use: str, text: str, **more: Any) -> Meta:
    return Meta(description=text, extra_json_schema={USE: use}, extra={"use": use, **more})
