"""The files of a plugin, so that a certificate proves one state of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from backbay.discovery import entry

Digests = dict[Path, str]


def own_files(backend: str) -> Digests:
    """The digest of each file in the package of an installed backend, or of `module:Class`; nothing is imported."""
    spec = find_spec(entry(backend).module.partition(":")[0].partition(".")[0])
    found: Digests = {}
    places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
    for place in places:
        for path in _files(Path(place)):
            with path.open("rb") as file:
                found[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def changed(before: Digests, after: Digests) -> str:
    """What has changed, as a reason against a certificate; empty if nothing has."""
    names = sorted(path.name for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return f"files of the plugin changed during the run: {', '.join(names)}" if names else ""


def _files(place: Path) -> Iterator[Path]:
    paths = place.rglob("*") if place.is_dir() else [place]
    return (path for path in paths if path.is_file() and "__pycache__" not in path.parts)
