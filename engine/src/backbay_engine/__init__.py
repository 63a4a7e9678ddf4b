"""Language, vision and embedding models on any backbay backend."""

from __future__ import annotations

from .checkpoints import Located, locate, models_in
from .conversion import convert
from .errors import (
    CacheShiftError,
    ContextOverflowError,
    DeadlineError,
    ImageError,
    LogitsError,
    QueueFullError,
    RequestError,
    TemplateError,
    TokenizerError,
)
from .images.picture import Image
from .images.prepared import Prepared
from .llm import LLM, estimate, load
from .runner.answer import Completion, Timings, TokenStep
from .runner.handle import Handle
from .runner.options import GenerationOptions
from .text.sampling import SamplingParams
from .text.tokenizers import Tokenizer, tokenizer_from_gguf

__all__ = [
    "LLM",
    "CacheShiftError",
    "Completion",
    "ContextOverflowError",
    "DeadlineError",
    "GenerationOptions",
    "Handle",
    "Image",
    "ImageError",
    "Located",
    "LogitsError",
    "Prepared",
    "QueueFullError",
    "RequestError",
    "SamplingParams",
    "TemplateError",
    "Timings",
    "TokenStep",
    "Tokenizer",
    "TokenizerError",
    "convert",
    "estimate",
    "load",
    "locate",
    "models_in",
    "tokenizer_from_gguf",
]
