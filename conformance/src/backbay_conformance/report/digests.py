"""Digests of the files of a plugin and of the suite, and of the calls that the suite has drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from backbay.discovery import entry

SUITE = __name__.partition(".")[0]
SHOW = {"command.py", "certificate_command.py", "html.py", "junit.py", "terminal.py"}
"""Files of the suite that show results: a certificate does not depend on them."""

Digests = dict[Path, str]


def own_files(backend: str) -> Digests:
    """The digest of each file in the package of an installed backend, or of `module:Class`; nothing is imported."""
    return _digests(files_of(package_of(backend)))


def python_files(package: str) -> Digests:
    return _digests(path for path in files_of(package) if path.suffix == ".py")


def suite_files() -> Digests:
    """The digest of each Python file that chooses calls or judges them."""
    return {path: own for path, own in python_files(SUITE).items() if path.name not in SHOW}


def package_of(backend: str) -> str:
    return entry(backend).module.partition(":")[0].partition(".")[0]


def files_of(package: str) -> list[Path]:
    spec = find_spec(package)
    places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
    return [path for place in places for path in _files(Path(place))]


def changed(before: Digests, after: Digests) -> str:
    """What has changed, as a reason against a certificate; empty if nothing has."""
    names = sorted(path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return f"files of the plugin changed during the run: {', '.join(names)}" if names else ""


def sources(digests: Digests) -> str:
    """One digest of all Python files, wherever they lie: what a machine compiles for itself is left out."""
    return digest(sorted(f"{path.name} {own}" for path, own in digests.items() if path.suffix == ".py"))


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def _digests(paths: Iterable[Path]) -> Digests:
    found: Digests = {}
    for path in paths:
        with path.open("rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _files(place: Path) -> Iterator[Path]:
    paths = place.rglob("*") if place.is_dir() else [place]
    return (path for path in paths if path.is_file() and "__pycache__" not in path.parts)
