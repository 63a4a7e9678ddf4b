"""Reranking: texts by how well they answer a query."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from ...generation.vectors import scores_of
from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from ..fields import MOST_TEXTS, Positive, ignored, taken


class Document(Struct):
    """A text."""

    text: Annotated[str, taken("the text")]


class RerankRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query, and texts to rank."""

    model: Annotated[str | None, taken("the model; a server of one model needs no name")] = None
    query: Annotated[str, taken("what the texts should answer")]
    documents: Annotated[
        Annotated[list[str | Document], Meta(min_length=1, max_length=MOST_TEXTS)], taken("the texts")
    ]
    top_n: Annotated[Positive | None, taken("the most results; by default all")] = None
    return_documents: Annotated[bool | None, taken("whether results have the texts")] = None
    max_chunks_per_doc: Annotated[int | None, ignored("texts are not cut")] = None
    max_tokens_per_doc: Annotated[int | None, ignored("texts are not cut")] = None
    user: Annotated[str | None, ignored("nothing is kept by user")] = None


class Result(Struct):
    """A text's place in the request, and its score: higher is better."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankUsage(Struct):
    """The tokens of all pairs of query and text."""

    prompt_tokens: int
    total_tokens: int


class Ranking(Struct):
    """The texts, the best first."""

    id: str
    model: str
    results: list[Result]
    usage: RerankUsage


async def rerank(call: Call, body: RerankRequest) -> Json:
    """Rank texts by how well they answer a query."""
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    scores = await scores_of(call.services.generator, body.model, body.query, texts)
    order = sorted(range(len(texts)), key=lambda place: -scores.values[place])[: body.top_n]
    results = [
        Result(place, scores.values[place], Document(texts[place]) if body.return_documents else UNSET)
        for place in order
    ]
    usage = RerankUsage(scores.tokens, scores.tokens)
    return Json(Ranking(f"rerank-{call.id}", scores.model, results, usage))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = tuple(
    Endpoint("POST", path, rerank, RerankRequest, Ranking) for path in ("/v1/rerank", "/v1/reranking")
)
