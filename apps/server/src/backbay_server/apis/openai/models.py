"""The models on offer."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from msgspec import Struct

from ...catalogue import CatalogueEntry
from ...transport.answers import JsonAnswer
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


async def list_models(call: EndpointCall, _: None) -> JsonAnswer:
    """List the models on offer."""
    found = await asyncio.to_thread(call.services.pool.listed)
    return JsonAnswer(ModelList([_shown(entry) for entry in found]))


async def show_model(call: EndpointCall, _: None) -> JsonAnswer:
    """Show one of the models on offer."""
    entry = await asyncio.to_thread(call.services.catalogue.find, call.path_params["id"])
    return JsonAnswer(_shown(entry))


def _shown(entry: CatalogueEntry) -> Model:
    return Model(entry.name, entry.created)


ENDPOINTS: Final = (
    Endpoint("GET", "/v1/models", list_models, answers=ModelList),
    Endpoint("GET", "/v1/models/{id:path}", show_model, answers=Model),
)
