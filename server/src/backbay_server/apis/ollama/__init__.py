"""Ollama's API: its answers, its lists of models, and its embeddings."""

from __future__ import annotations

from typing import Any, Final

from ..endpoint import Endpoint
from . import answering, embedding, models

ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    *models.ENDPOINTS,
    *answering.ENDPOINTS,
    *embedding.ENDPOINTS,
)
