"""From a request of any API to the engine, and back: requests, events, and the answers in between."""

from .answer import Answer, AnswerDelta, AnswerEnd
from .generator import Generator
from .given_rows import GivenRows
from .requests import AnswerOptions, Conversation, Request, SpeechRequest
from .transcriber import Transcriber

__all__ = [
    "Answer",
    "AnswerDelta",
    "AnswerEnd",
    "AnswerOptions",
    "Conversation",
    "Generator",
    "GivenRows",
    "Request",
    "SpeechRequest",
    "Transcriber",
]
