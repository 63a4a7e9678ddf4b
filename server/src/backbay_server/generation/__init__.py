"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from __future__ import annotations

from .answer import Answer
from .events import Delta, Event, Finish, Usage
from .generator import Generator
from .requests import Conversation, Options, Prompt, Request

__all__ = [
    "Answer",
    "Conversation",
    "Delta",
    "Event",
    "Finish",
    "Generator",
    "Options",
    "Prompt",
    "Request",
    "Usage",
]
