"""The pluggy hook of a backend plugin."""

from __future__ import annotations

import pluggy

from ..backend.backend import Backend

PROJECT = "backbay"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def backbay_backend() -> type[Backend] | None:
    """The backend class of the plugin."""
