"""The endpoints that embed texts."""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

from ...generation.vectors import vectors_of
from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from .answers import Embedded, OneEmbedded
from .conversations import name_of
from .requests import EmbeddingsRequest, EmbedRequest


async def embed(call: Call, body: EmbedRequest) -> Json:
    """Embed texts, in Ollama's form."""
    began = perf_counter_ns()
    texts = [body.input] if isinstance(body.input, str) else body.input
    found = await vectors_of(call.services.generator, name_of(body), texts, cut=body.truncate is True)
    return Json(Embedded(found.model, found.rows.tolist(), perf_counter_ns() - began, 0, found.tokens))


async def embed_one(call: Call, body: EmbeddingsRequest) -> Json:
    """Embed one text, in Ollama's older form."""
    found = await vectors_of(call.services.generator, name_of(body), [body.prompt])
    return Json(OneEmbedded(found.rows[0].tolist()))


ENDPOINTS: Final = (
    Endpoint("POST", "/api/embed", embed, EmbedRequest, Embedded),
    Endpoint("POST", "/api/embeddings", embed_one, EmbeddingsRequest, OneEmbedded),
)
