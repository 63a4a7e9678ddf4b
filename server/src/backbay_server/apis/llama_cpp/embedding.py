"""Embeddings in the older form of llama.cpp's server."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Struct

from ...generation.vectors import vectors_of
from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from ..fields import taken
from ..openai.completions import texts_of


class ContentRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed."""

    model: Annotated[str | None, taken("the model; a server of one model needs no name")] = None
    content: Annotated[str | list[str | int | list[int]], taken("a text, token ids, or several of either")]


class NestedEmbedding(Struct):
    """The vector of a text, in a list of one."""

    index: int
    embedding: list[list[float]]


async def embed(call: Call, body: ContentRequest) -> Json:
    """Embed texts, in the older form of llama.cpp's server."""
    texts = texts_of(body.content, "content")
    found = await vectors_of(call.services.generator, body.model, texts)
    return Json([NestedEmbedding(index, [row.tolist()]) for index, row in enumerate(found.rows)])


ENDPOINTS: Final = (Endpoint("POST", "/embedding", embed, ContentRequest, list[NestedEmbedding]),)
