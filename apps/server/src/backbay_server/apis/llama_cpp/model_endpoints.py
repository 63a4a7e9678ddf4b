"""What clients ask beside answers: prompts as texts, their tokens, vectors; a model's context, template and slots."""

from __future__ import annotations

import asyncio
from typing import Any, Final
from urllib.parse import parse_qs

from msgspec import Struct

from backbay_engine import LLM

from ...errors import InvalidRequestError
from ...transport.answers import JsonResponse
from ..endpoint import Endpoint, EndpointCall
from ..fields import Model, Texts
from ..openai.answers import FINGERPRINT
from ..openai.chat_requests import ChatRequest
from ..openai.completions import texts_of
from ..openai.conversations import chat_conversation


class DefaultSettings(Struct):
    """What holds for requests that say nothing else."""

    n_ctx: int


class Modalities(Struct):
    """What a model takes beside text."""

    vision: bool
    audio: bool


class ModelProperties(Struct):
    """A model, as llama.cpp's server describes it."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: Modalities
    build_info: str


class Slot(Struct):
    """A slot: room for an answer in progress."""

    id: int
    n_ctx: int
    is_processing: bool
    speculative: bool = False


async def show_properties(call: EndpointCall, _: None) -> JsonResponse:
    """Describe a model, that of ?model=NAME if there are several."""
    with await call.services.generator.lease(asked_model(call)) as lease:
        found = await asyncio.to_thread(_properties, lease.llm, lease.name)
        return JsonResponse(found)


async def list_slots(call: EndpointCall, _: None) -> JsonResponse:
    """List the slots of a model, that of ?model=NAME if there are several."""
    with await call.services.generator.lease(asked_model(call)) as lease:
        slots = (await asyncio.to_thread(lease.llm.state)).slots
        return JsonResponse([Slot(id, lease.llm.context, slot.busy) for id, slot in enumerate(slots)])


def asked_model(call: EndpointCall) -> str | None:
    """The model that ?model=NAME names."""
    given = parse_qs(call.scope["query_string"].decode("latin-1")).get("model")
    return given[0] if given else None


def _properties(llm: LLM, name: str) -> ModelProperties:
    tokens = llm.tokenizer

    def text(id: int | None) -> str:
        return "" if id is None else tokens.token_bytes(id, special=True).decode("utf-8", "replace")

    return ModelProperties(
        DefaultSettings(llm.context),
        len(llm.state().slots),
        name,
        f"{name}.gguf",  # where it lies is nobody's business
        tokens.chat_template or "",
        text(tokens.bos),
        text(tokens.eos),
        Modalities("image" in llm.modalities, "audio" in llm.modalities),
        FINGERPRINT,
    )


class EmbedContentRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed."""

    model: Model = None
    content: Texts


class NestedEmbedding(Struct):
    """The vector of a text, in a list of one."""

    index: int
    embedding: list[list[float]]


async def embed(call: EndpointCall, body: EmbedContentRequest) -> JsonResponse:
    """Embed texts, in the older form of llama.cpp's server."""
    texts = texts_of(body.content, "content")
    found = await call.services.generator.embed(body.model, texts)
    return JsonResponse([NestedEmbedding(index, [row.tolist()]) for index, row in enumerate(found.rows)])


class PromptText(Struct):
    """The text of a prompt."""

    prompt: str


class PromptTokenCount(Struct):
    """The number of a prompt's tokens."""

    input_tokens: int


async def apply_template(call: EndpointCall, body: ChatRequest) -> JsonResponse:
    """Show the prompt of a conversation, without an answer."""
    generator, asked = call.services.generator, await call.converted(chat_conversation, body)
    with await generator.lease(body.model) as lease:
        prompt = await generator.prompt(lease.llm, asked)
        if not isinstance(prompt, list):
            raise InvalidRequestError("a prompt with pictures is no text", param="messages")
        return JsonResponse(PromptText(lease.llm.tokenizer.decode(prompt, special=True)))


async def count_tokens(call: EndpointCall, body: ChatRequest) -> JsonResponse:
    """Count the tokens of a conversation's prompt."""
    asked = await call.converted(chat_conversation, body)
    return JsonResponse(PromptTokenCount(await call.services.generator.count(body.model, asked)))


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("POST", "/embedding", embed, EmbedContentRequest, list[NestedEmbedding]),
    Endpoint("POST", "/apply-template", apply_template, ChatRequest, PromptText),
    Endpoint("POST", "/v1/chat/completions/input_tokens", count_tokens, ChatRequest, PromptTokenCount),
    Endpoint("POST", "/chat/completions/input_tokens", count_tokens, ChatRequest, PromptTokenCount),
    Endpoint("GET", "/props", show_properties, answers=ModelProperties),
    Endpoint("GET", "/slots", list_slots, answers=list[Slot]),
)
