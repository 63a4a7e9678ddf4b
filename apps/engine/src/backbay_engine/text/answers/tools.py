"""The tools that an answer may call."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

from backbay.gguf import nearest

from ...errors import ToolsError

ToolChoice: TypeAlias = str | Mapping[str, Any]
"""auto, none, required, or {"type": "function", "function": {"name": ...}}."""
_WORDS: Final = ("auto", "none", "required")
_NAME: Final = re.compile(r"[\w.:/-]+")
_SHAPE: Final = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'


@final
@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that an answer may call.

    definitions  as OpenAI has them; none: calls are not looked for in the answer
    strict       names of tools whose arguments obey their schemas; those of others are as the model chooses
    forced       whether the answer must be a call of one of the tools
    parallel     whether an answer may have several calls; otherwise it has the first one only
    """

    definitions: Sequence[Mapping[str, Any]] = ()
    strict: frozenset[str] = frozenset()
    forced: bool = False
    parallel: bool = True

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The schemas of arguments by the names of functions; definitions that are no functions have none."""
        functions = [each.get("function") for each in self.definitions]
        given = [each for each in functions if isinstance(each, Mapping)]
        named = [each for each in given if isinstance(each.get("name"), str)]
        return {each["name"]: each.get("parameters") or {} for each in named}

    def __post_init__(self) -> None:
        if self.forced and not self.definitions:
            raise ToolsError("a call is demanded, and there are no tools")


def tools_of(tools: object, choice: object = "auto", *, parallel: bool = True) -> Tools:
    """The tools as users give them, in OpenAI's form; ToolsError if an answer cannot call them, or must and there is none."""
    if not isinstance(parallel, bool):
        raise ToolsError(f"parallel_tool_calls must be True or False, got {parallel!r}")
    functions = [_function(each) for each in _listed(tools)]
    names = [each["name"] for each in functions]
    named = _named(choice)
    if choice == "none":
        return Tools()
    if named is not None and named not in names:
        raise ToolsError(
            f"tool_choice asks for the tool {named!r}, and tools has none{nearest(named, names)}"
        )
    if choice == "required" and not functions:
        raise ToolsError("tool_choice asks for a tool, and tools has none")
    allowed = [each for each in functions if named in (None, each["name"])]
    strict = frozenset(each["name"] for each in allowed if each.get("strict") is True)
    shown = [{name: value for name, value in each.items() if name != "strict"} for each in allowed]
    definitions = [{"type": "function", "function": each} for each in shown]
    return Tools(definitions, strict, choice == "required" or named is not None, parallel)


def _listed(tools: object) -> list[Any]:
    if tools is None:
        return []
    if isinstance(tools, Iterable) and not isinstance(tools, (str, bytes, Mapping)):
        return list(tools)
    raise ToolsError(f"tools must be a list of {_SHAPE}, got {reprlib.repr(tools)}")


def _function(tool: object) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ToolsError(f"a tool must be {_SHAPE}, got {reprlib.repr(tool)}")
    if not _NAME.fullmatch(function["name"]):
        raise ToolsError(f"the name of a tool has letters, digits and _-.:/ alone, got {function['name']!r}")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        told = f"the parameters of the tool {function['name']!r} must be a JSON schema"
        raise ToolsError(f"{told}, got {reprlib.repr(parameters)}")
    return function


def _named(choice: object) -> str | None:
    """The name of the tool that must be called; None if the choice is a word."""
    if isinstance(choice, str) and choice in _WORDS:
        return None
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ToolsError(
            'tool_choice must be auto, none, required or {"type": "function", "function": {"name": ...}}, '
            f"got {reprlib.repr(choice)}"
        )
    return name
