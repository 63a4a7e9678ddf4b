"""Response formats as callers give them."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, final

from ...errors import ResponseFormatError

FormatKind: TypeAlias = Literal["schema", "regex", "grammar", "choice"]
LONGEST: Final = 1 << 20  # characters of a schema or a grammar
_FORMS: Final = (
    "a JSON schema, a pydantic model, a compiled regular expression, a text with a regular expression or a grammar "
    "(with a rule `start`), a list of choices, or a mapping with a type of OpenAI's"
)
_RULE: Final = re.compile(r"^\s*(\??start\s*(\[[^\]]*\])?\s*:|root\s*::=)", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """What an answer must be. The text is a JSON schema, a regular expression, a grammar, or a JSON list of choices."""

    kind: FormatKind
    text: str

    def __post_init__(self) -> None:
        if len(self.text) > LONGEST:
            raise ResponseFormatError(
                f"a response format may have {LONGEST} characters, this one has {len(self.text)}"
            )


def response_format_of(given: object) -> ResponseFormat | None:
    """The format that a caller gives; None if an answer may be any text."""
    schema_of = getattr(given, "model_json_schema", None)
    if given is None or isinstance(given, ResponseFormat):
        return given
    if callable(schema_of):  # a model of pydantic
        return _schema(schema_of())
    if isinstance(given, re.Pattern):
        flags = given.flags & ~re.UNICODE
        if not isinstance(given.pattern, str) or flags:
            what = re.RegexFlag(flags)
            raise ResponseFormatError(f"a regular expression must be a text without flags, got {what!r}")
        return ResponseFormat("regex", given.pattern)
    if isinstance(given, Mapping):
        return _mapping(given)
    if isinstance(given, str):
        return ResponseFormat("grammar" if _RULE.search(given) else "regex", given)
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        return _choice(given)
    raise ResponseFormatError(f"response_format must be {_FORMS}, got {reprlib.repr(given)}")


def _mapping(given: Mapping[str, Any]) -> ResponseFormat | None:
    """A schema, or a format with a type, as in OpenAI's APIs."""
    match dict(given):
        case {"type": "text", **others} if not others:
            return None
        case {"type": "json_object"}:
            return _schema({"type": "object"})
        case (
            {"type": "json_schema", "json_schema": {"schema": schema}}  # of chat completions
            | {"type": "json_schema", "schema": schema}  # of responses
        ):
            return _schema(schema)
        case {"type": "json_schema"}:
            raise ResponseFormatError("response_format of the type json_schema has no schema")
        case {"type": "regex", "regex": str(text)}:
            return ResponseFormat("regex", text)
        case {"type": "grammar", "grammar": str(text)}:
            return ResponseFormat("grammar", text)
        case {"type": "choice", "choice": choices}:
            return _choice(choices)
        case schema:
            return _schema(schema)


def _schema(schema: object) -> ResponseFormat:
    if not isinstance(schema, Mapping):
        raise ResponseFormatError(f"a JSON schema must be a mapping, got {reprlib.repr(schema)}")
    try:
        return ResponseFormat("schema", json.dumps(schema, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ResponseFormatError(f"a JSON schema must be plain JSON: {error}") from None


def _choice(given: object) -> ResponseFormat:
    choices = list(given) if isinstance(given, Sequence) and not isinstance(given, (str, bytes)) else []
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise ResponseFormatError(
            f"choices must be texts that are not empty, one at least, got {reprlib.repr(given)}"
        )
    return ResponseFormat("choice", json.dumps(choices))
