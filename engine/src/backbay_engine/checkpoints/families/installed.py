"""Families that other packages declare, under the names of transformers' classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import cast

from backbay import BackbayError
from backbay.discovery import Declared, conflict
from backbay.internals import load_declared

from ..family import Family
from ..settings import Settings

GROUP = "backbay.checkpoints"
"""The entry-point group in which packages declare families."""


def declared_family(
    name: str, points: Sequence[Declared], *, taken: bool
) -> Family | Callable[[Settings], Family]:
    """Import a family, or the function that chooses one; BackbayError if there are several, or if it is broken."""
    if taken:
        origins = [f"backbay-engine {version('backbay-engine')}", *(point.origin for point in points)]
        raise BackbayError(conflict(f"family {name!r}", origins))
    found = load_declared(f"family {name!r}", points)
    if isinstance(found, Family):
        return found
    if callable(found) and not isinstance(found, type):
        return cast("Callable[[Settings], Family]", found)
    raise BackbayError(
        f"family {name!r} of {points[0].origin}: {found!r} is neither a backbay_engine.plugin.Family nor a function from Settings to one"
    )
