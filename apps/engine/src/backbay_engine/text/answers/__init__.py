"""The forms in which models write their answers: reasoning, text, and calls of tools, told apart while the text grows."""

from .answer_form import AnswerForm, form_of
from .answer_readers import PlainReader, reader_of
from .call_format import AnswerRule, call_format
from .pieces import AnswerReader, CallArguments, CallBegun, Piece, Reasoning, Text, ToolCall, joined
from .tools import ToolChoice, Tools, tools_of

__all__ = [
    "AnswerForm",
    "AnswerReader",
    "AnswerRule",
    "CallArguments",
    "CallBegun",
    "Piece",
    "PlainReader",
    "Reasoning",
    "Text",
    "ToolCall",
    "ToolChoice",
    "Tools",
    "call_format",
    "form_of",
    "joined",
    "reader_of",
    "tools_of",
]
