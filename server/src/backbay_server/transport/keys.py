"""API keys: every route but the open ones wants one of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from os import PathLike
from pathlib import Path
from typing import TypeAlias, final

from starlette.types import ASGIApp, Receive, Scope, Send

from backbay import OptionError

from ..errors import AuthenticationError, error_response

MOST_BYTES = 1 << 20
OPEN = frozenset({"/", "/health", "/v1/health", "/ready", "/metrics"})
PAGE = "/page/"  # files that everybody may have
# OpenAI's first words: litellm knows a wrong key by them
WRONG = "Incorrect API key provided, or none: send the header Authorization: Bearer KEY"
Digests: TypeAlias = tuple[bytes, ...]


def read_keys(path: str | PathLike[str]) -> tuple[str, ...]:
    """The keys in a file, one on a line; lines that begin with # are remarks. OptionError if there is none."""
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
            text = data.decode("ascii")
    except OSError as error:
        raise OptionError(f"the keys in {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"the keys in {path} must be ASCII text") from None
    if len(data) > MOST_BYTES:
        raise OptionError(f"{path} has more than {MOST_BYTES} bytes of keys, and the last ones would be lost")
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise OptionError(f"{path} holds no key; write one on a line")
    return keys


def is_open(path: str) -> bool:
    """Whether a path wants no key, and is served to the last."""
    return path in OPEN or path.startswith(PAGE)


@final
class Keys:
    """Refuses requests without a key, as `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests: Digests = tuple(sha256(key.encode()).digest() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope["path"]) or self._knows(scope):
            await self._app(scope, receive, send)
            return
        await error_response(AuthenticationError(WRONG), scope)(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [key for name, value in scope["headers"] if (key := _key(name, value))]
        # every digest is compared with every key, so that the time tells nothing
        found = [
            compare_digest(sha256(key).digest(), digest) for key in given[:4] for digest in self._digests
        ]
        return any(found)


def _key(name: bytes, value: bytes) -> bytes:
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else b""
    return value.strip() if name in {b"x-api-key", b"api-key"} else b""
