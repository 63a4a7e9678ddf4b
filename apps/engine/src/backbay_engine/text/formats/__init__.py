"""Response formats: what an answer must be, as a schema, a regular expression, a grammar or a choice."""

from .constraint_maker import ConstraintMaker, check_format
from .format_rule import format_rule
from .response_format import FormatKind, ResponseFormat, response_format_of

__all__ = [
    "ConstraintMaker",
    "FormatKind",
    "ResponseFormat",
    "check_format",
    "format_rule",
    "response_format_of",
]
