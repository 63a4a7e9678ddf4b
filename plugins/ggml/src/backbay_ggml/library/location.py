"""Where libggml is: named by the environment, or part of an installed package, which is never imported."""

from __future__ import annotations

import os
import re
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
OTHER_NAMES = re.compile(r"libggml(-[0-9a-f]{8})?(\.v?\d[.\d]*)?\.(so|dylib)(\.\d+)*")
"""Of libraries in other packages: `libggml.v0.5.0.so`, and `libggml-684d824a.so.0.13.1` of wheels."""


def locate_library(named: str = "") -> Path:
    """The library that is named, here or by the environment, or an installed one; a BackendUnavailableError lists where
    it was searched."""
    if named := name_of_library(named):
        return _named(Path(named))
    for package in PACKAGES:
        for found in _files(package):
            return found
    raise BackendUnavailableError(
        f"no libggml: {VARIABLE} is not set, and neither {', '.join(PACKAGES[:-1])} nor {PACKAGES[-1]} is installed "
        f"with one; {INSTALL}"
    )


def name_of_library(named: str = "") -> str:
    """The file or folder that somebody names, else the environment; empty if none is named."""
    return named or os.environ.get(VARIABLE, "")


def _named(path: Path) -> Path:
    candidates = [path]
    if path.is_dir():
        candidates = [path / name for name in NAMES]
        candidates += [each for each in sorted(path.iterdir()) if OTHER_NAMES.fullmatch(each.name)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve() if candidate.is_symlink() else candidate.absolute()
    there = ", ".join(sorted(each.name for each in path.glob("*.so")))
    raise BackendUnavailableError(
        f"{path}: no such library; name its file, such as {there or 'libggml.so'}, or its folder"
    )


def library_stamp(path: Path, *others: Path) -> list[tuple[str, int, int]]:
    """The names, sizes and times of a library's files, and of others, on which results of trials depend."""
    files = sorted({path, *others, *path.parent.glob("libggml*")})
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


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
