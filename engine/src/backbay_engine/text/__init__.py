"""Text to tokens and back, chat templates, and the choice of tokens."""

from __future__ import annotations

from .chat import ChatTemplate, TemplateLimits, chat_template_from_gguf
from .errors import TemplateError, TokenizerError
from .sampling import Sampled, Sampler, SamplingParams, TokenLogprob
from .stops import StopMatcher
from .stream import TokenStream
from .tokenizer import Tokenizer, tokenizer_from_gguf

__all__ = [
    "ChatTemplate",
    "Sampled",
    "Sampler",
    "SamplingParams",
    "StopMatcher",
    "TemplateError",
    "TemplateLimits",
    "TokenLogprob",
    "TokenStream",
    "Tokenizer",
    "TokenizerError",
    "chat_template_from_gguf",
    "tokenizer_from_gguf",
]
