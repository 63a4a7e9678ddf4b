"""What a model is for: text, embeddings of texts, or scores of pairs of texts."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from ..errors import RequestError

Numbers: TypeAlias = Literal["embeddings", "scores"]
_MADE: Final[dict[bool, tuple[Numbers, str]]] = {False: ("embeddings", "embed"), True: ("scores", "rerank")}


def require_text(architecture: str, *, generates: bool, ranks: bool) -> None:
    """RequestError unless a model generates text."""
    if not generates:
        made, method = _MADE[ranks]
        raise RequestError(f"{architecture} makes {made}, it generates no text; use {method}")


def require_numbers(wanted: Numbers, architecture: str, *, generates: bool, ranks: bool) -> None:
    """RequestError unless a model makes embeddings, or scores, whichever is wanted."""
    made, method = _MADE[ranks]
    if generates:
        alike = "a model like bert" if wanted == "embeddings" else "a reranker, such as bge-reranker"
        raise RequestError(f"{architecture} generates text; {wanted} come from {alike}")
    if made != wanted:
        raise RequestError(f"this file of {architecture} makes {made}, no {wanted}; use {method}")


def sees_no_pictures(architecture: str) -> RequestError:
    """The error of a picture for a model without an encoder."""
    return RequestError(
        f"the model ({architecture}) sees no pictures: its file has no encoder; name the encoder's file with projector= "
        "(--projector), if the model has one"
    )
