"""Response formats: what an answer must be, as a schema, a regular expression, a grammar or a choice."""

from .constraint_maker import ConstraintMaker, check_format
from .response_format import FormatKind, ResponseFormat, response_format_of

__all__ = ["ConstraintMaker", "FormatKind", "ResponseFormat", "check_format", "response_format_of"]
