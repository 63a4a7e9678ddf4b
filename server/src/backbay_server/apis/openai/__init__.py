"""OpenAI's API."""

from __future__ import annotations

from typing import Any, Final

from ..endpoint import Endpoint
from . import chat, completions, embeddings, models, rerank, responses, tokens

ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *models.ENDPOINTS,
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *responses.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *rerank.ENDPOINTS,
    *tokens.ENDPOINTS,
)
