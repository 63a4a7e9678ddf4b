"""The APIs that clients know: their endpoints, bodies and answers."""

from __future__ import annotations

from typing import Any, Final

from . import anthropic, llama_cpp, ollama, openai
from .endpoint import Endpoint

ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *openai.ENDPOINTS,
    *anthropic.ENDPOINTS,
    *ollama.ENDPOINTS,
    *llama_cpp.ENDPOINTS,
)
