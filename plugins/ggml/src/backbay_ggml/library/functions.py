"""The functions of ggml, which may lie in several files: libggml, and the code for this machine's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

from backbay import BackendUnavailableError
from backbay.internals import raise_if_starved

from .abi import Ptr, ffi


@final
class Functions:
    """The functions by their names, as attributes, of the first file that has them."""

    def __init__(self, path: Path) -> None:
        self._opened: list[Any] = []
        self.take_from(path)

    def take_from(self, path: Path) -> None:
        """Add the functions of a file; it stays open."""
        try:
            opened = ffi.dlopen(str(path))
        except OSError as error:
            raise_if_starved(error, f"loading {path}")
            raise BackendUnavailableError(f"{path} cannot be loaded: {error}") from error
        self._opened.append(opened)
        for name in self.missing():
            try:
                setattr(self, name, getattr(opened, name))
            except (AttributeError, ffi.error):
                continue

    def missing(self) -> set[str]:
        """The functions that the plugin calls and no file has."""
        return set(dir(self._opened[0])) - set(vars(self))


def file_of(address: Ptr, lib: Any) -> Path:
    """The loaded file in which code lies."""
    place = ffi.new("code_place *")
    if lib.dladdr(address, place) == 0:
        raise BackendUnavailableError(f"no loaded file holds the address {address}")
    return Path(ffi.string(place.file).decode())
