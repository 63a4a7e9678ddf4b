"""Scenarios that installed distributions add to the suite by entry points."""

from __future__ import annotations

from functools import cache

from backbay import BackbayError
from backbay.discovery import declared

GROUP = "backbay_conformance.scenarios"
"""Entry points of this group name modules; importing a module declares its scenarios."""


@cache
def load_extensions() -> tuple[str, ...]:
    """Import all extension modules, and record the distribution of each.

    A module that cannot be imported ends the run: scenarios are never left out in silence.
    """
    origins: list[str] = []
    for points in declared(GROUP).values():
        for point in points:
            try:
                point.load()
            except Exception as error:
                raise BackbayError(
                    f"the scenarios {point.value!r} of {point.origin} cannot be loaded: "
                    f"{type(error).__name__}: {error}; fix or uninstall {point.distribution}"
                ) from error
            origins.append(f"{point.name} of {point.origin}")
    return tuple(origins)
