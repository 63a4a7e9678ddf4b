"""Rows that clients give in the place of tokens, by servers that were told to take them."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np
from msgspec import Struct

from backbay_engine import Rows

from ..errors import InvalidRequestError
from .requests import Conversation, Prompt

OPTION: Final = "--allow-rows"


@final
class GivenRows(Struct, frozen=True):
    """Rows as a client sent them, which are decoded in the thread that makes the prompt."""

    data: str
    width: int

    def decoded(self) -> Rows:
        """InvalidRequestError if they are none."""
        try:
            data = b64decode(self.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidRequestError(f"rows must be base64 of float32: {error}") from None
        if self.width < 1 or not data or len(data) % (4 * self.width):
            raise InvalidRequestError(
                f"rows have {len(data)} bytes, which are no whole rows of {self.width} float32 numbers"
            )
        return Rows(np.frombuffer(data, "<f4").reshape(-1, self.width))


def require_no_rows(*prompts: Prompt) -> None:
    """InvalidRequestError if a conversation has rows."""
    for asked in prompts:
        for message in asked.messages if isinstance(asked, Conversation) else ():
            content = message.get("content")
            if isinstance(content, list) and any(part["type"] == "rows" for part in content):
                raise InvalidRequestError(f"this server takes no rows: it was started without {OPTION}")


def with_rows(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as the engine takes it, its rows decoded."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_decoded(part) for part in content]}


def _decoded(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**part, "rows": part["rows"].decoded()} if part["type"] == "rows" else part
