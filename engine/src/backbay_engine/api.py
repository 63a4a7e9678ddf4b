"""All that `backbay_engine` offers; it imports this module when a name is first asked for."""

from __future__ import annotations

from .chats import ChatRequest
from .checkpoints import Located, locate, models_in, projector_beside
from .conversion import convert
from .errors import (
    CacheShiftError,
    ContextOverflowError,
    DamagedSnapshotError,
    DeadlineError,
    ForeignSnapshotError,
    ImageError,
    LogitsError,
    QueueFullError,
    RequestError,
    ResponseFormatError,
    SnapshotError,
    TemplateError,
    TokenizerError,
    ToolsError,
)
from .images.picture import Image
from .images.prepared import Prepared
from .llm import LLM
from .loading import estimate, load
from .port.options import LoadOptions
from .runner.requests.answer import Completion, Timings, TokenStep
from .runner.requests.handle import Handle
from .runner.requests.request import GenerationOptions
from .runner.state import SlotState, State, Totals
from .snapshots import Snapshot
from .text.answers import (
    AnswerReader,
    CallArguments,
    CallBegun,
    Piece,
    PlainReader,
    Reasoning,
    Text,
    ToolCall,
    ToolChoice,
    Tools,
    joined,
    tools_of,
)
from .text.formats import ResponseFormat
from .text.sampling import Constraint, Sampled, SamplingParams, TokenLogprob
from .text.tokenizers import Tokenizer, tokenizer_from_gguf

__all__ = [
    "LLM",
    "AnswerReader",
    "CacheShiftError",
    "CallArguments",
    "CallBegun",
    "ChatRequest",
    "Completion",
    "Constraint",
    "ContextOverflowError",
    "DamagedSnapshotError",
    "DeadlineError",
    "ForeignSnapshotError",
    "GenerationOptions",
    "Handle",
    "Image",
    "ImageError",
    "LoadOptions",
    "Located",
    "LogitsError",
    "Piece",
    "PlainReader",
    "Prepared",
    "QueueFullError",
    "Reasoning",
    "RequestError",
    "ResponseFormat",
    "ResponseFormatError",
    "Sampled",
    "SamplingParams",
    "SlotState",
    "Snapshot",
    "SnapshotError",
    "State",
    "TemplateError",
    "Text",
    "Timings",
    "TokenLogprob",
    "TokenStep",
    "Tokenizer",
    "TokenizerError",
    "ToolCall",
    "ToolChoice",
    "Tools",
    "ToolsError",
    "Totals",
    "convert",
    "estimate",
    "joined",
    "load",
    "locate",
    "models_in",
    "projector_beside",
    "tokenizer_from_gguf",
    "tools_of",
]
