"""Embeddings of texts, and reranking: texts by how well they answer a query."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from ...errors import InvalidRequestError
from ...transport.answers import JsonResponse
from ..endpoint import Endpoint, EndpointCall
from ..fields import MOST_TEXTS, Model, Positive, ignored, refused, taken
from .completions import texts_of


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed."""

    input: Annotated[
        str | Annotated[list[str | int | list[int]], Meta(max_length=1 << 20)],
        taken("a text, token ids, or several of either"),
    ]
    model: Model = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None, taken("base64: the bytes of float32, lowest first")
    ] = None
    dimensions: Annotated[
        Positive | None, taken("the length of vectors; only the model's own is accepted")
    ] = None
    user: Annotated[str | None, ignored("nothing is kept by user")] = None


class Embedding(Struct):
    """The vector of a text."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class TextsUsage(Struct):
    """The tokens of all texts, or of all pairs of query and text."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """The vectors of all texts."""

    data: list[Embedding]
    model: str
    usage: TextsUsage
    object: Literal["list"] = "list"


async def embed(call: EndpointCall, body: EmbeddingRequest) -> JsonResponse:
    """Embed texts."""
    texts = texts_of(body.input, "input")
    found = await call.services.generator.embed(body.model, texts)
    width, numbers = found.rows.shape[1], found.rows.astype("<f4")
    if body.dimensions not in (None, width):
        raise InvalidRequestError(
            f"dimensions cannot be {body.dimensions}: the model's vectors have {width}", param="dimensions"
        )
    packed = body.encoding_format == "base64"
    shown = [base64.b64encode(row.tobytes()).decode() if packed else row.tolist() for row in numbers]
    data = [Embedding(index, each) for index, each in enumerate(shown)]
    return JsonResponse(EmbeddingList(data, found.model, TextsUsage(found.tokens, found.tokens)))


# -- reranking -------------------------------------------------------------------------------------------


class Document(Struct):
    """A text."""

    text: Annotated[str, taken("the text")]


class RerankRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query, and texts to rank: `documents`, or `texts` for an answer in the form of Hugging Face's TEI."""

    model: Model = None
    query: Annotated[str, taken("what the texts should answer")]
    documents: Annotated[
        Annotated[list[str | Document], Meta(min_length=1, max_length=MOST_TEXTS)] | None, taken("the texts")
    ] = None
    texts: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=MOST_TEXTS)] | None,
        taken("the texts, in place of documents: the answer is a list of scores"),
    ] = None
    top_n: Annotated[Positive | None, taken("the most results; by default all")] = None
    return_documents: Annotated[bool | None, taken("whether results have the texts")] = None
    return_text: Annotated[bool | None, taken("another name of return_documents, beside texts")] = None
    raw_scores: Annotated[bool | None, ignored("scores are the model's")] = None
    truncate: Annotated[bool | None, refused("texts are not cut", (False,))] = None
    max_chunks_per_doc: Annotated[int | None, ignored("texts are not cut")] = None
    max_tokens_per_doc: Annotated[int | None, ignored("texts are not cut")] = None
    user: Annotated[str | None, ignored("nothing is kept by user")] = None


class RankedDocument(Struct):
    """A text's place in the request, and its score: higher is better."""

    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class Ranking(Struct):
    """The texts, the best first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: TextsUsage


class ScoredText(Struct):
    """A text's place in the request, and its score, in the form of TEI."""

    index: int
    score: float
    text: str | UnsetType = UNSET


async def rerank(call: EndpointCall, body: RerankRequest) -> JsonResponse:
    """Rank texts by how well they answer a query."""
    given = body.documents if body.texts is None else body.texts
    if given is None or None not in (body.documents, body.texts):
        raise InvalidRequestError("give documents, or texts", param="documents")
    texts = [each if isinstance(each, str) else each.text for each in given]
    scores = await call.services.generator.rank(body.model, body.query, texts)
    values = scores.rows.tolist()
    order = sorted(range(len(texts)), key=lambda place: -values[place])[: body.top_n]
    if body.texts is not None:
        told = body.return_text or body.return_documents
        return JsonResponse(
            [ScoredText(place, values[place], texts[place] if told else UNSET) for place in order]
        )
    shown = [Document(text) if body.return_documents else UNSET for text in texts]
    results = [RankedDocument(place, values[place], shown[place]) for place in order]
    usage = TextsUsage(scores.tokens, scores.tokens)
    return JsonResponse(Ranking(f"rerank-{call.id}", scores.model, results, usage))


RANKED: Final[Any] = Ranking | list[ScoredText]
ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/v1/embeddings", embed, EmbeddingRequest, EmbeddingList),
    *(Endpoint("POST", path, rerank, RerankRequest, RANKED) for path in ("/v1/rerank", "/v1/reranking")),
)
