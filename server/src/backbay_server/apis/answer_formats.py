"""The fields `grammar` and `json_schema` of llama.cpp's server, which stand in bodies of several APIs."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidRequestError
from ..generation import Format, schema_format


def format_of_fields(
    grammar: str | None, schema: dict[str, Any] | None, other: Format | None = None
) -> Format | None:
    """What the answer must be, by one of the fields, or by another that is given already."""
    if sum(1 for each in (grammar or None, schema, other) if each is not None) > 1:
        raise InvalidRequestError("an answer has one format: give response_format, json_schema or grammar")
    if grammar:
        return {"type": "grammar", "grammar": grammar}
    return other if schema is None else schema_format(schema)
