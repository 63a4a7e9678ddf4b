"""The header Host: a page of another site may have a name that resolves to this machine (DNS rebinding)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import final

from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import ForbiddenError, error_response

ANY = "*"
_HOST = re.compile(r"(\[[0-9a-fA-F:.%\w]+\]|[\w.\-]+)(:\d{1,5})?", re.ASCII)


@final
class Hosts:
    """Serves requests for localhost, for addresses, and for the given names; `*` allows all names.

    An address cannot be rebound: only names resolve.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allows(header(scope, b"host")):
            await self._app(scope, receive, send)
            return
        error = ForbiddenError("the header Host names none of this server's hosts; see --allow-host")
        await error_response(error, scope)(scope, receive, send)

    def _allows(self, given: list[bytes]) -> bool:
        if not given:
            return True  # no browser; checks of load balancers may send none
        match = _HOST.fullmatch(given[0].decode("latin-1").strip())
        if match is None or len(given) > 1:
            return False
        name = match[1].lower().rstrip(".")
        local = name == "localhost" or name.endswith(".localhost")
        return local or ANY in self._names or name in self._names or _is_address(name)


def header(scope: Scope, name: bytes) -> list[bytes]:
    """The values of a request's header."""
    return [value for each, value in scope["headers"] if each == name]


def _is_address(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
