"""The tools of a request, whichever API it came by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from backbay_engine import Tools

from ..errors import InvalidRequestError


def tools_of(
    functions: Iterable[Mapping[str, Any]],
    *,
    strict: Iterable[str],
    choice: Literal["none", "auto", "required"],
    named: str | None,
    parallel: bool,
) -> Tools:
    """The tools that a model may call; InvalidRequestError if there is none where one must be called.

    functions  with their names, descriptions and parameters
    strict     names of functions whose arguments must obey their schemas
    named      the function that must be called; None: any
    """
    if choice == "none":
        return Tools()
    forced = choice == "required" or named is not None
    allowed = [each for each in functions if named in (None, each["name"])]
    if not allowed and forced:
        wanted = "a tool" if named is None else f"the tool {named!r}"
        raise InvalidRequestError(f"tool_choice asks for {wanted}, and tools has none", param="tool_choice")
    definitions = [{"type": "function", "function": each} for each in allowed]
    return Tools(definitions, frozenset(strict), forced, parallel)
