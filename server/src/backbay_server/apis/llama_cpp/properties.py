"""What clients ask of a model before they use it: its context, its template, its slots."""

from __future__ import annotations

import asyncio
from typing import Final, Literal
from urllib.parse import parse_qs

from msgspec import Struct

from backbay_engine import LLM

from ...transport.answers import Json
from ..endpoint import Call, Endpoint
from ..openai.answers import FINGERPRINT


class Defaults(Struct):
    """What holds for requests that say nothing else."""

    n_ctx: int


class Modalities(Struct):
    """What a model takes beside text."""

    vision: bool
    audio: Literal[False] = False


class Properties(Struct):
    """A model, as llama.cpp's server describes it."""

    default_generation_settings: Defaults
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


async def show_properties(call: Call, _: None) -> Json:
    """Describe a model, that of ?model=NAME if there are several."""
    with await call.services.generator.lease(_asked(call)) as lease:
        found = await asyncio.to_thread(_properties, lease.llm, lease.name)
        return Json(found)


async def list_slots(call: Call, _: None) -> Json:
    """List the slots of a model, that of ?model=NAME if there are several."""
    with await call.services.generator.lease(_asked(call)) as lease:
        slots = (await asyncio.to_thread(lease.llm.state)).slots
        return Json([Slot(id, lease.llm.context, slot.busy) for id, slot in enumerate(slots)])


def _asked(call: Call) -> str | None:
    given = parse_qs(call.scope["query_string"].decode("latin-1")).get("model")
    return given[0] if given else None


def _properties(llm: LLM, name: str) -> Properties:
    tokens = llm.tokenizer

    def text(id: int | None) -> str:
        return "" if id is None else tokens.token_bytes(id, special=True).decode("utf-8", "replace")

    return Properties(
        Defaults(llm.context),
        len(llm.state().slots),
        name,
        f"{name}.gguf",  # where it lies is nobody's business
        tokens.chat_template or "",
        text(tokens.bos),
        text(tokens.eos),
        Modalities("image" in llm.modalities),
        FINGERPRINT,
    )


ENDPOINTS: Final = (
    Endpoint("GET", "/props", show_properties, answers=Properties),
    Endpoint("GET", "/slots", list_slots, answers=list[Slot]),
)
