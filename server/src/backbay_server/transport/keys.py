"""API keys: every route but the open ones wants one of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from os import PathLike
from pathlib import Path
from typing import final

from starlette.types import ASGIApp, Scope

from backbay import OptionError

from ..errors import ApiError, AuthenticationError
from .guards import Guard

MOST_BYTES = 1 << 20
OPEN = frozenset({"/", "/health", "/v1/health", "/ready", "/metrics"})
PAGE = "/page/"  # files that everybody may have
# OpenAI's first words: litellm knows a wrong key by them
WRONG = "Incorrect API key provided, or none: send the header Authorization: Bearer KEY"


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
class Keys(Guard):
    """Refuses requests without a key, as `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        super().__init__(app)
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    def refusal(self, scope: Scope) -> ApiError | None:
        given = [key for name, value in scope["headers"] if (key := _key(name, value))]
        # every digest is compared with every key, so that the time tells nothing
        found = [
            compare_digest(sha256(key).digest(), digest) for key in given[:4] for digest in self._digests
        ]
        return None if is_open(scope["path"]) or any(found) else AuthenticationError(WRONG)


def _key(name: bytes, value: bytes) -> bytes:
    if name == b"authorization":
        scheme, _, key = value.strip().partition(b" ")
        return key.strip() if scheme.lower() == b"bearer" else b""
    return value.strip() if name in {b"x-api-key", b"api-key"} else b""
