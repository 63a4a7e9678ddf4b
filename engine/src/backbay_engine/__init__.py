"""Models that answer, on any backbay backend."""

from __future__ import annotations

from .errors import CacheShiftError, LogitsError, RequestError
from .llm import LLM, estimate, load
from .runner.answer import Completion, Handle, Timings
from .text.sampling import SamplingParams
from .text.tokenizers import Tokenizer, tokenizer_from_gguf

__all__ = [
    "LLM",
    "CacheShiftError",
    "Completion",
    "Handle",
    "LogitsError",
    "RequestError",
    "SamplingParams",
    "Timings",
    "Tokenizer",
    "estimate",
    "load",
    "tokenizer_from_gguf",
]
