"""Forced calls: the format of an answer that must be a call of a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .requests import Format, schema_format

# llguidance's option: calls are written on one line, so that no model goes on with spaces
_ONE_LINE: Final = {"whitespace_pattern": " ?"}


def call_format(tools: Sequence[Mapping[str, Any]]) -> Format:
    """The format of a call of one of the tools: JSON with its name, and arguments by its schema."""
    schemas = [_call(tool["function"], f"#/anyOf/{number}") for number, tool in enumerate(tools)]
    return schema_format({"anyOf": schemas, "x-guidance": _ONE_LINE})


def _call(function: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    arguments = _moved(function.get("parameters") or {"type": "object"}, f"{place}/properties/arguments")
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references hold when it stands at a place of another schema."""
    if isinstance(schema, list):
        return [_moved(each, place) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"{place}{reference[1:]}"
    return moved
