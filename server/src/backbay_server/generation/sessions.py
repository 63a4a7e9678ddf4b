"""Sessions: names that the requests of one conversation share, so that they find the cache of its beginning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from .requests import Conversation, Gap, Prompt

LETTERS, TOKENS = 256, 64  # of a plain prompt; one that is shorter has little to find again
_SIZE: Final = 12  # bytes


def session_of(asked: Prompt) -> str:
    """The name of a conversation, by its messages up to the first one of the user; of a plain prompt, by its beginning."""
    if isinstance(asked, Conversation):
        said = msgspec.json.encode(_beginning(asked.messages), enc_hook=repr)
    elif isinstance(asked, str | Gap):
        said = (asked if isinstance(asked, str) else asked.before)[:LETTERS].encode("utf-8", "replace")
    else:
        said = msgspec.json.encode(list(asked[:TOKENS]))
    return hashlib.blake2b(said, digest_size=_SIZE).hexdigest()


def _beginning(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    before: Iterable[Mapping[str, Any]] = takewhile(lambda message: message["role"] != "user", messages)
    kept = [*before]
    return [*kept, *messages[len(kept) : len(kept) + 1]]
