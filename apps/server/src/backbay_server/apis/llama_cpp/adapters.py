"""The adapters of a model, in the form of llama.cpp's server: their numbers, and the scales of requests that name none."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from ...transport.answers import JsonResponse
from ..endpoint import Endpoint, EndpointCall
from ..fields import AdapterScale
from .model_endpoints import asked_model


class AdapterState(Struct):
    """An adapter, and its scale for requests that name none."""

    id: int
    path: str
    scale: float


class Success(Struct):
    """The scales hold now."""

    success: bool = True


async def list_adapters(call: EndpointCall, _: None) -> JsonResponse:
    """List the adapters of a model, that of ?model=NAME if there are several."""
    with await call.services.generator.lease(asked_model(call)) as lease:
        scales = dict(lease.usual)
        return JsonResponse(
            [AdapterState(id, name, scales.get(name, 0.0)) for id, name in enumerate(lease.adapters)]
        )


async def set_scales(call: EndpointCall, body: list[AdapterScale]) -> JsonResponse:
    """Set the scales of requests that name no adapter; those of adapters that are not listed become 0."""
    with await call.services.generator.lease(asked_model(call)) as lease:
        lease.usual = lease.numbered([(each.id, each.scale) for each in body])
        return JsonResponse(Success())


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("GET", "/lora-adapters", list_adapters, answers=list[AdapterState]),
    Endpoint(
        "POST",
        "/lora-adapters",
        set_scales,
        Annotated[list[AdapterScale], Meta(max_length=1024)],  # type: ignore[arg-type]  # msgspec takes it as a type
        Success,
    ),
)
