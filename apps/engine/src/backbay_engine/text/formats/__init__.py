"""Response formats: what an answer must be, as a schema, a regular expression, a grammar or a choice."""

from .grammars import Grammars, check
from .response_format import FormatKind, ResponseFormat, response_format_of

__all__ = ["FormatKind", "Grammars", "ResponseFormat", "check", "response_format_of"]
