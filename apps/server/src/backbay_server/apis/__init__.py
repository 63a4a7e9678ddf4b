"""The APIs that clients know: their endpoints, bodies and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from .anthropic import messages
from .endpoint import Endpoint
from .llama_cpp import adapters, model_endpoints, tokenization
from .llama_cpp import completions as llama_completions
from .ollama import endpoints as ollama_endpoints
from .ollama import models as ollama_models
from .openai import chat, completions, embeddings, models
from .openai.audio import endpoint as audio
from .openai.responses import endpoint as responses

_VERSIONED: Final[tuple[Endpoint[Any], ...]] = (
    *models.ENDPOINTS,
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *responses.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *audio.ENDPOINTS,
)
ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *_VERSIONED,
    *(replace(each, path=each.path.removeprefix("/v1")) for each in _VERSIONED),  # as many clients ask
    *tokenization.ENDPOINTS,
    *messages.ENDPOINTS,
    *ollama_models.ENDPOINTS,
    *ollama_endpoints.ENDPOINTS,
    *llama_completions.ENDPOINTS,
    *model_endpoints.ENDPOINTS,
    *adapters.ENDPOINTS,
)
