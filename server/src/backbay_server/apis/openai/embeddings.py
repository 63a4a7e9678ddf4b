"""Embeddings."""

from __future__ import annotations

import base64
from typing import Annotated, Final, Literal

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from ...errors import InvalidRequestError
from ...generation.vectors import vectors_of
from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from ..fields import Positive, ignored, taken
from .completions import texts_of


class EmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed."""

    input: Annotated[
        str | Annotated[list[str | int | list[int]], Meta(max_length=1 << 20)],
        taken("a text, token ids, or several of either"),
    ]
    model: Annotated[str | None, taken("the model; a server of one model needs no name")] = None
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


class EmbeddingUsage(Struct):
    """The tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Struct):
    """The vectors of all texts."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


async def embed(call: Call, body: EmbeddingRequest) -> Json:
    """Embed texts."""
    texts = texts_of(body.input, "input")
    found = await vectors_of(call.services.generator, body.model, texts)
    _require_width(body.dimensions, found.rows.shape[1])
    shown = _as_base64 if body.encoding_format == "base64" else _as_floats
    data = [Embedding(index, shown(row)) for index, row in enumerate(found.rows)]
    return Json(EmbeddingList(data, found.model, EmbeddingUsage(found.tokens, found.tokens)))


def _require_width(wanted: int | None, width: int) -> None:
    if wanted not in (None, width):
        raise InvalidRequestError(
            f"dimensions cannot be {wanted}: the model's vectors have {width}", param="dimensions"
        )


def _as_floats(row: NDArray[np.float32]) -> list[float]:
    return row.tolist()  # type: ignore[no-any-return]


def _as_base64(row: NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


ENDPOINTS: Final = (Endpoint("POST", "/v1/embeddings", embed, EmbeddingRequest, EmbeddingList),)
