"""Scenarios that installed distributions add to the suite's profiles by entry point."""

from __future__ import annotations

from functools import cache

from backbay import BackbayError
from backbay.discovery import declared

GROUP = "backbay_conformance.scenarios"
"""Entry points of this group name modules; importing one declares scenarios, as the suite's own modules do."""


@cache
def load_extensions() -> tuple[str, ...]:
    """Import them all, and say whose they are.

    What cannot be imported ends the run: were it left out, nobody would notice that it proves nothing.
    """
    origins: list[str] = []
    for points in declared(GROUP).values():
        for point in points:
            try:
                point.load()
            except Exception as error:
                raise BackbayError(
                    f"the scenarios {point.value!r} of {point.origin} cannot be loaded: "
                    f"{type(error).__name__}: {error}; mend or uninstall {point.distribution}"
                ) from error
            origins.append(f"{point.name} of {point.origin}")
    return tuple(origins)
