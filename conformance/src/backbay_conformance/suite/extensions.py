"""What other distributions add: scenarios, by entry points, and functions that know the steps of model files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from backbay import Backend
from backbay.discovery import declared
from backbay.internals import load_declared

GROUP = "backbay_conformance.scenarios"


@cache
def load_extensions() -> tuple[str, ...]:
    """Load all extensions, and record the distribution of each.

    One that cannot be loaded ends the run: scenarios are never left out in silence.
    """
    points = [point for points in declared(GROUP).values() for point in points]
    for point in points:
        load_declared("backbay_scenarios", f"the scenarios {point.value!r}", [point])
    return tuple(f"{point.name} of {point.origin}" for point in points)


CompileSteps = Callable[[Backend], None]
"""Compiles typical steps of the model that a backend was opened with; the backend only measures memory."""

PROVIDERS: list[CompileSteps] = []


def model_steps(function: CompileSteps) -> CompileSteps:
    """Declare a function that compiles the steps of a model, so that `conform --like` can read their calls."""
    PROVIDERS.append(function)
    return function
