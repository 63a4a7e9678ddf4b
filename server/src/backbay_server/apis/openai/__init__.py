"""OpenAI's API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from ..endpoint import Endpoint
from . import chat, completions, embeddings, models, rerank, responses, tokens

_VERSIONED: Final[tuple[Endpoint[Any], ...]] = (
    *models.ENDPOINTS,
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *responses.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *rerank.ENDPOINTS,
)
# Many clients are given an address without /v1.
ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *_VERSIONED,
    *(replace(each, path=each.path.removeprefix("/v1")) for each in _VERSIONED),
    *tokens.ENDPOINTS,
)
