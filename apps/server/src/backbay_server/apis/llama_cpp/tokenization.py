"""Tokens of texts, and texts of tokens, in the form of llama.cpp's server."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final

from msgspec import Struct

from backbay_engine import Tokenizer

from ...errors import InvalidRequestError
from ...generation.prompt_size import require_short
from ...transport.answers import JsonResponse
from ..endpoint import Endpoint, EndpointCall
from ..fields import Count, Model, taken


class TokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to cut into tokens."""

    model: Model = None
    content: Annotated[str, taken("the text")]
    add_special: Annotated[bool, taken("whether the tokens that the model expects at the ends are added")] = (
        False
    )
    parse_special: Annotated[bool, taken("whether the text of a control token becomes the token")] = True
    with_pieces: Annotated[bool, taken("whether each token comes with its text")] = False


class TokenPiece(Struct):
    """A token and its text; bytes where the text is no whole character."""

    id: int
    piece: str | list[int]


class TokenList(Struct):
    """The tokens of a text."""

    tokens: list[int | TokenPiece]


class DetokenizeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens to join into a text."""

    model: Model = None
    tokens: Annotated[list[Count], taken("the tokens")]


class DetokenizedText(Struct):
    """The text of tokens."""

    content: str


async def tokenize(call: EndpointCall, body: TokenizeRequest) -> JsonResponse:
    """Cut a text into tokens."""
    generator = call.services.generator
    with await generator.lease(body.model) as lease:
        require_short(lease.llm, body.content)
        return JsonResponse(
            TokenList(await generator.beside(_tokens, lease.llm.tokenizer, body.content, body))
        )


async def detokenize(call: EndpointCall, body: DetokenizeRequest) -> JsonResponse:
    """Join tokens into a text."""
    generator = call.services.generator
    with await generator.lease(body.model) as lease:
        most = lease.llm.tokenizer.vocabulary_size
        if wrong := [id for id in body.tokens if id >= most]:
            raise InvalidRequestError(f"tokens: {wrong[0]} is not in [0, {most})", param="tokens")
        decode = partial(lease.llm.tokenizer.decode, special=True)
        return JsonResponse(DetokenizedText(await generator.beside(decode, body.tokens)))


def _tokens(tokenizer: Tokenizer, text: str, body: TokenizeRequest) -> list[int | TokenPiece]:
    ids = tokenizer.encode(text, add_special=body.add_special, parse_special=body.parse_special)
    return [_piece(tokenizer, id) for id in ids] if body.with_pieces else [*ids]


def _piece(tokenizer: Tokenizer, id: int) -> TokenPiece:
    data = tokenizer.token_bytes(id, special=True)
    try:
        return TokenPiece(id, data.decode())
    except UnicodeDecodeError:
        return TokenPiece(id, list(data))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/tokenize", tokenize, TokenizeRequest, TokenList),
    Endpoint("POST", "/detokenize", detokenize, DetokenizeRequest, DetokenizedText),
)
