"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from __future__ import annotations

from .answer import Answer
from .calls import CallArguments, CallBegun, Piece, Reasoning, Text
from .events import Delta, Event, Finish, Usage
from .generator import Generator
from .requests import Conversation, Format, Options, Prompt, Request, schema_format

__all__ = [
    "Answer",
    "CallArguments",
    "CallBegun",
    "Conversation",
    "Delta",
    "Event",
    "Finish",
    "Format",
    "Generator",
    "Options",
    "Piece",
    "Prompt",
    "Reasoning",
    "Request",
    "Text",
    "Usage",
    "schema_format",
]
