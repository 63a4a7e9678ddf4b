"""What becomes of prompts without an answer: their text, the number of their tokens, and vectors of texts."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ...errors import InvalidRequestError
from ...generation import prepared
from ...generation.vectors import vectors_of
from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from ..fields import Model, Texts
from ..openai.chat import conversation_asked
from ..openai.chat_requests import ChatRequest
from ..openai.completions import texts_of


class ContentRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed."""

    model: Model = None
    content: Texts


class NestedEmbedding(Struct):
    """The vector of a text, in a list of one."""

    index: int
    embedding: list[list[float]]


async def embed(call: Call, body: ContentRequest) -> Json:
    """Embed texts, in the older form of llama.cpp's server."""
    texts = texts_of(body.content, "content")
    found = await vectors_of(call.services.generator, body.model, texts)
    return Json([NestedEmbedding(index, [row.tolist()]) for index, row in enumerate(found.rows)])


class PromptText(Struct):
    """The text of a prompt."""

    prompt: str


class PromptTokens(Struct):
    """The number of a prompt's tokens."""

    input_tokens: int


async def apply_template(call: Call, body: ChatRequest) -> Json:
    """Show the prompt of a conversation, without an answer."""
    generator, asked = call.services.generator, conversation_asked(body)
    with await generator.lease(body.model) as lease:
        prompt = (await generator.beside(prepared, lease.llm, asked)).prompt
        if not isinstance(prompt, list):
            raise InvalidRequestError("a prompt with pictures is no text", param="messages")
        return Json(PromptText(lease.llm.tokenizer.decode(prompt, special=True)))


async def count_tokens(call: Call, body: ChatRequest) -> Json:
    """Count the tokens of a conversation's prompt."""
    return Json(PromptTokens(await call.services.generator.count(body.model, conversation_asked(body))))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/embedding", embed, ContentRequest, list[NestedEmbedding]),
    Endpoint("POST", "/apply-template", apply_template, ChatRequest, PromptText),
    Endpoint("POST", "/v1/chat/completions/input_tokens", count_tokens, ChatRequest, PromptTokens),
    Endpoint("POST", "/chat/completions/input_tokens", count_tokens, ChatRequest, PromptTokens),
)
