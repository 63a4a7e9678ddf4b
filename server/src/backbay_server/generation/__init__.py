"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from __future__ import annotations

from .answer import Answer
from .events import Delta, Event, Finish, Usage
from .generator import Generator
from .prompts import made as prompt_of
from .requests import Conversation, Format, Gap, Options, Prompt, Request, schema_format

__all__ = [
    "Answer",
    "Conversation",
    "Delta",
    "Event",
    "Finish",
    "Format",
    "Gap",
    "Generator",
    "Options",
    "Prompt",
    "Request",
    "Usage",
    "prompt_of",
    "schema_format",
]
