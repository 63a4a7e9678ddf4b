"""What other distributions add: scenarios, by entry points, and functions that know the steps of model files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from backbay import BackbayError, Backend
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


CompileSteps = Callable[[Backend], None]
"""Compiles typical steps of the model that a backend was opened with; the backend only measures memory."""

PROVIDERS: list[CompileSteps] = []


def model_steps(function: CompileSteps) -> CompileSteps:
    """Declare a function that compiles the steps of a model, so that `conform --like` can read their calls."""
    PROVIDERS.append(function)
    return function
