"""Formats of answers, as chat and responses name them."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from msgspec import Struct, to_builtins

from ...generation import Format, schema_format
from ..fields import ignored, taken


class TextFormat(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Any text."""


class ObjectFormat(Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    """Any JSON object, or JSON by a schema, as llama.cpp's server has it."""

    schema: Annotated[dict[str, Any] | None, taken("the JSON schema, which the answer obeys")] = None


class Schema(Struct, forbid_unknown_fields=True):
    """A schema with a name."""

    schema: Annotated[dict[str, Any], taken("the JSON schema, which the answer obeys")]
    name: Annotated[str | None, ignored("the model sees no name")] = None
    description: Annotated[str | None, ignored("describe the answer in a message")] = None
    strict: Annotated[bool | None, ignored("an answer always obeys its schema")] = None


class ChatSchemaFormat(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON by a schema, as chat has it."""

    json_schema: Annotated[Schema, taken("the schema")]


class SchemaFormat(Schema, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON by a schema, as responses have it."""


class PatternFormat(Struct, tag="regex", tag_field="type", forbid_unknown_fields=True):
    """Text by a regular expression."""

    regex: Annotated[str, taken("the regular expression, which the whole answer matches")]


class GrammarFormat(Struct, tag="grammar", tag_field="type", forbid_unknown_fields=True):
    """Text by a grammar."""

    grammar: Annotated[str, taken("the grammar, in the form of llguidance or of llama.cpp")]


class ChoiceFormat(Struct, tag="choice", tag_field="type", forbid_unknown_fields=True):
    """One of several texts."""

    choice: Annotated[list[str], taken("the texts")]


Others: TypeAlias = TextFormat | ObjectFormat | PatternFormat | GrammarFormat | ChoiceFormat
ChatFormat: TypeAlias = Others | ChatSchemaFormat
ResponsesFormat: TypeAlias = Others | SchemaFormat


def format_of(given: ChatFormat | ResponsesFormat | None) -> Format | None:
    """The format for the engine; None if the answer may be any text."""
    if isinstance(given, ObjectFormat):
        return {"type": "json_object"} if given.schema is None else schema_format(given.schema)
    found: Format | None = None if given is None or isinstance(given, TextFormat) else to_builtins(given)
    return found
