"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from .answer import Answer, Delta, Finish
from .generator import Generator
from .prompts import prepared, require_fitting
from .requests import Conversation, Format, Gap, Options, Prompt, Request, schema_format

__all__ = [
    "Answer",
    "Conversation",
    "Delta",
    "Finish",
    "Format",
    "Gap",
    "Generator",
    "Options",
    "Prompt",
    "Request",
    "prepared",
    "require_fitting",
    "schema_format",
]
