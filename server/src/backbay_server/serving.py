"""Serving an application on a socket, until a signal ends it."""

from __future__ import annotations

import sys
from contextlib import suppress

from backbay.cli import say

from .application import app
from .settings import Settings
from .transport.server import Server, bound
from .watching import set_up_logging


def serve(settings: Settings, *, log: str = "text") -> None:
    """Serve until SIGTERM or SIGINT. One line on standard output tells the address."""
    listener = bound(settings.host, settings.port)
    with listener, set_up_logging(log):
        application = app(settings=settings)
        address, port = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address

        def listening() -> None:
            with suppress(OSError):  # a full disk ends no server
                say(f"listening on http://{shown}:{port}")
                sys.stdout.flush()

        async def cancel() -> None:
            await application.state.services.pool.close()

        server = Server(
            application,
            application.state.drain,
            drain_seconds=settings.drain_seconds,
            cancel=cancel,
            listening=listening,
        )
        server.run([listener])
