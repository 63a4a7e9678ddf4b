"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from .answer import Answer, Delta, Finish
from .generator import Generator
from .requests import Conversation, Options, Request

__all__ = ["Answer", "Conversation", "Delta", "Finish", "Generator", "Options", "Request"]
