"""The forms in which models write their answers: reasoning, text, and calls of tools, told apart while the text grows."""

from __future__ import annotations

from .answer_form import AnswerForm, form_of
from .call_format import call_format
from .pieces import CallArguments, CallBegun, Piece, Reasoning, Text, ToolCall, joined
from .reader import AnswerReader
from .reading import PlainReader, reader_of
from .tools import ToolChoice, Tools, tools_of

__all__ = [
    "AnswerForm",
    "AnswerReader",
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
