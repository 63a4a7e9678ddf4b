"""The entry points that installed distributions declare in a group, read without importing any of them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BackbayError, describe
from ..memory.starvation import naming_limits, raise_if_starved

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Declared:
    """An entry point, and the distribution that declares it."""

    name: str
    value: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}"

    def load(self) -> Any:
        """Import and return the object that it names; errors of the import pass through unchanged."""
        from importlib.metadata import EntryPoint

        return EntryPoint(self.name, self.value, "").load()

    def summary(self) -> str:
        """The first line of its module's docstring, read from the source without an import; empty if there is none."""
        package, *inner = self.value.partition(":")[0].strip().split(".")
        try:
            spec = find_spec(package)  # of a name without a dot: this imports nothing
            if spec is None or spec.origin is None:
                return ""
            source = Path(spec.origin)
            if inner:
                place = source.parent.joinpath(*inner)
                source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            return (
                (ast.get_docstring(ast.parse(source.read_text("utf-8"))) or "")
                .partition("\n")[0]
                .removesuffix(".")
            )
        except (ImportError, OSError, ValueError, SyntaxError):
            return ""


def conflict(what: str, origins: Iterable[str]) -> str:
    """The text of the error if several distributions provide the same name."""
    return f"{what} is provided by {' and '.join(origins)}; uninstall all but one"


def load_declared(what: str, points: Sequence[Declared]) -> Any:
    """Import the object that the one entry point of a name stands for.

    BackbayError if several distributions declare the name, or if the object cannot be imported.
    """
    if len(points) > 1:
        raise BackbayError(conflict(what, [point.origin for point in points]))
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:
        what = f"{what} of {points[0].origin}"
        raise_if_starved(error, f"importing {what}")
        raise BackbayError(f"{what} cannot be imported: {describe(error)}") from error


def declared(group: str) -> dict[str, list[Declared]]:
    """All entry points of a group, sorted by name; several if distributions declare the same name."""
    found: dict[str, list[Declared]] = {}
    with naming_limits("looking for plugins"):
        # importlib.metadata would find nothing if no file can be opened
        os.close(os.open(os.devnull, os.O_RDONLY))
    for point in sorted(_points(group), key=lambda point: point.name):
        origin = "unknown", "unknown"
        try:
            origin = origin if point.dist is None else (point.dist.name, point.dist.version)
        except Exception:  # noqa: BLE001  metadata that are no text
            origin = "unreadable", "unknown"
        found.setdefault(point.name, []).append(Declared(point.name, point.value, *origin))
    return found


def _points(group: str) -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    try:
        return entry_points(group=group)
    except Exception:  # noqa: BLE001  one unreadable entry_points.txt must not hide all others
        return list(_readable_points(group))


def _readable_points(group: str) -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    seen: set[str] = set()
    for distribution in distributions():
        try:
            points, name = distribution.entry_points, distribution.name
        except Exception:  # noqa: BLE001, S112  its metadata are unreadable
            continue
        if name not in seen:  # import finds the first on sys.path
            seen.add(name)
            yield from points.select(group=group)
