"""The backend tinygrad: this module is its entry point."""

from backbay.plugin import Backend, hookimpl


@hookimpl
def backbay_backend() -> type[Backend]:
    from .backend import TinygradBackend  # imported when the backend is opened, not when it is listed

    return TinygradBackend
