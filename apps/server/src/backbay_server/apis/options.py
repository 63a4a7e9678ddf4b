"""What bodies of several APIs ask for: formats of answers, reasoning, and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from backbay_engine import Tools

from ..errors import InvalidRequestError
from ..generation.requests import AnswerFormat, schema_format


def format_of_fields(
    grammar: str | None, schema: dict[str, Any] | None, *others: AnswerFormat | None
) -> AnswerFormat | None:
    """What the answer must be, by one of llama.cpp's fields `grammar` and `json_schema`, or by another format."""
    found = [each for each in others if each is not None]
    found += [AnswerFormat({"type": "grammar", "grammar": grammar}, "grammar")] if grammar else []
    found += [] if schema is None else [schema_format(schema, "json_schema")]
    if len(found) > 1:
        names = " and ".join(each.field for each in found)
        raise InvalidRequestError(f"an answer has one format, got {names}", param=found[1].field)
    return found[0] if found else None


def reasoning_variables(*, on: bool | None, effort: str | None) -> dict[str, Any]:
    """The variables by which chat templates are told whether, and how much, the model reasons.

    None leaves the choice to the template. Templates have two names for the first one.
    """
    found: dict[str, Any] = {} if on is None else {"enable_thinking": on, "thinking": on}
    return found if effort is None else {**found, "reasoning_effort": effort}


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
