"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from __future__ import annotations

from .answer import Answer
from .events import Delta, Event, Finish, Usage
from .forms import CallArguments, CallBegun, Piece, Reasoning, Text, arguments_of
from .generator import Generator
from .prompts import made as prompt_of
from .requests import Conversation, Format, Gap, Options, Prompt, Request, Tools, schema_format

__all__ = [
    "Answer",
    "CallArguments",
    "CallBegun",
    "Conversation",
    "Delta",
    "Event",
    "Finish",
    "Format",
    "Gap",
    "Generator",
    "Options",
    "Piece",
    "Prompt",
    "Reasoning",
    "Request",
    "Text",
    "Tools",
    "Usage",
    "arguments_of",
    "prompt_of",
    "schema_format",
]
