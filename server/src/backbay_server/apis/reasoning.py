"""The variables by which chat templates are told whether, and how much, the model reasons."""

from __future__ import annotations

from typing import Any


def reasoning_variables(*, on: bool | None = None, effort: str | None = None) -> dict[str, Any]:
    """The variables; None leaves the choice to the template. Templates have two names for the first one."""
    found: dict[str, Any] = {} if on is None else {"enable_thinking": on, "thinking": on}
    return found if effort is None else {**found, "reasoning_effort": effort}
