"""The models on offer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct

from ...catalogue import CatalogueEntry
from ...errors import names_anthropic
from ...transport.answers import JsonResponse
from ..endpoint import Endpoint, EndpointCall


class Model(Struct):
    """A model on offer."""

    id: str
    created: int
    object: Literal["model"] = "model"
    owned_by: str = "backbay"


class ModelList(Struct):
    """The models on offer."""

    data: list[Model]
    object: Literal["list"] = "list"


class AnthropicModel(Struct):
    """A model on offer, for clients of Anthropic."""

    id: str
    display_name: str
    created_at: str
    type: Literal["model"] = "model"


class AnthropicModelList(Struct):
    """The models on offer, for clients of Anthropic: all on one page."""

    data: list[AnthropicModel]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


async def list_models(call: EndpointCall, _: None) -> JsonResponse:
    """List the models on offer."""
    found = await asyncio.to_thread(call.services.pool.listed)
    if not names_anthropic(call.scope):
        return JsonResponse(ModelList([_shown(entry) for entry in found]))
    shown = [_shown_anthropic(entry) for entry in found]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return JsonResponse(AnthropicModelList(shown, first, last))


async def show_model(call: EndpointCall, _: None) -> JsonResponse:
    """Show one of the models on offer."""
    entry = await asyncio.to_thread(call.services.catalogue.find, call.path_params["id"])
    return JsonResponse(_shown_anthropic(entry) if names_anthropic(call.scope) else _shown(entry))


def _shown_anthropic(entry: CatalogueEntry) -> AnthropicModel:
    created = datetime.fromtimestamp(entry.created, UTC).isoformat().replace("+00:00", "Z")
    return AnthropicModel(entry.name, entry.name, created)


def _shown(entry: CatalogueEntry) -> Model:
    return Model(entry.name, entry.created)


ENDPOINTS: Final = (
    Endpoint("GET", "/v1/models", list_models, answers=ModelList),
    Endpoint("GET", "/v1/models/{id:path}", show_model, answers=Model),
)
