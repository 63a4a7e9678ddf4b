"""Families that other packages declare, under the names of transformers' classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import cast

from backbay import BackbayError
from backbay.discovery import Declared, conflict
from backbay.internals import raise_if_starved

from ..family import Family
from ..settings import Settings

GROUP = "backbay.checkpoints"
"""The entry-point group in which packages declare families."""


def declared_family(
    name: str, points: Sequence[Declared], *, taken: bool
) -> Family | Callable[[Settings], Family]:
    """Import a family, or the function that chooses one; BackbayError if there are several, or if it is broken."""
    origins = [point.origin for point in points]
    if taken:
        origins.insert(0, f"backbay-engine {version('backbay-engine')}")
    if len(origins) > 1:
        raise BackbayError(conflict(f"family {name!r}", origins))
    what = f"family {name!r} of {origins[0]}"
    try:
        found = points[0].load()
    except (Exception, SystemExit) as error:
        raise_if_starved(error, f"importing {what}")
        raise BackbayError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error
    if isinstance(found, Family):
        return found
    if callable(found) and not isinstance(found, type):
        return cast("Callable[[Settings], Family]", found)
    raise BackbayError(
        f"{what}: {found!r} is neither a backbay_engine.plugin.Family nor a function from Settings to one"
    )
