"""Where libggml is: named by the environment, or part of an installed package, which is never imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from backbay import BackendUnavailableError

VARIABLE = "BACKBAY_GGML_LIB"
OURS = "backbay-ggml-lib"
PACKAGES = (OURS, "ggml-python", "llama-cpp-python")  # in order of preference
INSTALL = "in a clone of backbay: pip install ./plugins/ggml/lib"
REBUILD = "python -m backbay_ggml.rebuild"
# Wheels hold copies under several names. Each loaded copy has a state of its own, so only one is ever opened.
NAMES = ("libggml.so.0", "libggml.so", "libggml.0.dylib", "libggml.dylib", "ggml.dll")


def locate_library() -> Path:
    """The library file; a BackendUnavailableError lists where it was searched."""
    named = os.environ.get(VARIABLE)
    if named:
        return _named(Path(named))
    for package in PACKAGES:
        for found in _files(package):
            return found
    raise BackendUnavailableError(
        f"no libggml: {VARIABLE} is not set, and neither {', '.join(PACKAGES[:-1])} nor {PACKAGES[-1]} is installed "
        f"with one; {INSTALL}"
    )


def _named(path: Path) -> Path:
    candidates = [path / name for name in NAMES] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve() if candidate.is_symlink() else candidate
    raise BackendUnavailableError(
        f"{VARIABLE}={path}: no such library; name the file libggml.so, or its folder"
    )


def _files(package: str) -> Iterator[Path]:
    """The libraries of an installed distribution, in the order of NAMES."""
    try:
        listed = distribution(package).files or []
    except PackageNotFoundError:
        return
    for name in NAMES:
        for entry in listed:
            if entry.name == name:
                path = Path(str(entry.locate()))
                if path.is_file():
                    yield path.resolve()
