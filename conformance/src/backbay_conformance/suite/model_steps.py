"""Functions that know the steps of model files; other distributions add them."""

from __future__ import annotations

from collections.abc import Callable

from backbay import Backend

CompileSteps = Callable[[Backend], None]
"""Compiles typical steps of the model that a backend was opened with; the backend only measures memory."""

PROVIDERS: list[CompileSteps] = []


def model_steps(function: CompileSteps) -> CompileSteps:
    """Declare a function that compiles the steps of a model, so that `conform --like` can read their calls."""
    PROVIDERS.append(function)
    return function
