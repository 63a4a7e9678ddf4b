"""A response format as Lark, the form of llguidance's grammars: alone, or as a rule of a larger grammar."""

from __future__ import annotations

import json
import re
from typing import Final

from backbay import OptionError

from ...errors import ResponseFormatError
from .response_format import ResponseFormat

# as in llama.cpp: without a limit, a model may write spaces for ever
SPACE: Final = r"( |\n{1,2}[ \t]{0,20})"

_ESCAPED: Final = re.compile(r"\\?\n|\\.|/")


def format_rule(wanted: ResponseFormat) -> str:
    """What an answer must be, as the right side of a rule; ResponseFormatError if it is no format."""
    text = wanted.text
    match wanted.kind:
        case "schema":
            schema = json.loads(text)
            guidance = schema.get("x-guidance")
            spaces = {"whitespace_pattern": SPACE, **(guidance if isinstance(guidance, dict) else {})}
            return f"%json {json.dumps({**schema, 'x-guidance': spaces})}"
        case "choice":
            return f"/{_ESCAPED.sub(_in_slashes, choice_pattern(text))}/"
        case "regex":
            return f"/{_ESCAPED.sub(_in_slashes, text)}/"
        case "grammar":
            return f"%lark {{\n{as_lark(text)}\n}}"


def _in_slashes(found: re.Match[str]) -> str:
    if found[0].endswith("\n"):
        return r"\n"
    return r"\/" if found[0] == "/" else found[0]


def choice_pattern(text: str) -> str:
    """A regular expression of the texts of a list in JSON: a grammar has a limit of alternatives, an expression none."""
    return "|".join(map(re.escape, json.loads(text)))


def as_lark(text: str) -> str:
    """A grammar, which may be in the form of llama.cpp."""
    try:
        from llguidance.gbnf_to_lark import any_to_lark
    except ImportError as error:
        raise OptionError("response_format needs llguidance: pip install llguidance") from error
    try:
        found: str = any_to_lark(text)
    except Exception as error:
        raise ResponseFormatError(f"response_format: {error}", str(error)) from error
    return found
