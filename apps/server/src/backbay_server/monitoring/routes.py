"""Routes for those who watch the server: health, readiness, metrics, and the state that the page shows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backbay import BackbayError, BackendMemory

from ..errors import UnavailableError, error_response
from .metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from ..apis.endpoint import AppServices
    from ..catalogue.pool import PooledModel

JSON = "application/json"


async def health(request: Request) -> Response:
    """Whether the process serves requests at all."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def ready(request: Request) -> Response:
    """Whether a request sent now would be answered soon; 503 while models load, and while the server drains."""
    services = request.app.state.services
    if services.drain.begun or not services.pool.ready:
        why = "the server is shutting down" if services.drain.begun else "the models are being loaded"
        return error_response(UnavailableError(why), request.scope)
    return Response(b'{"status":"ready"}', media_type=JSON)


async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' format, with the option --metrics."""
    found = await asyncio.to_thread(request.app.state.services.metrics.text)  # models may answer late
    return Response(found, media_type=CONTENT_TYPE)


async def show_state(request: Request) -> Response:
    """The slots, queues, speed and memory of the models, as the page shows them."""
    services = request.app.state.services
    found = await asyncio.to_thread(_state, services)
    return Response(msgspec.json.encode(found), media_type=JSON)


def routes(*, with_metrics: bool) -> list[Route]:
    found = {"/health": health, "/v1/health": health, "/ready": ready, "/state": show_state}
    if with_metrics:
        found["/metrics"] = metrics
    return [Route(path, function) for path, function in found.items()]


# -- the state: models, slots, queues, and memory by device and layer ------------------------------------


def _state(services: AppServices) -> dict[str, Any]:
    """The state as plain data. No text of any request is in it."""
    models = [_model(held, services.settings.backend) for held in services.pool.held()]
    return {
        "draining": services.drain.begun,
        "ready": services.pool.ready,
        "running": services.metrics.running,
        "generated_tokens": sum(model["totals"]["generated"] for model in models if "totals" in model),
        "models": models,
    }


def _model(held: PooledModel, backend: str | None) -> dict[str, Any]:
    """One model; `backend` is the first one that the settings name."""
    llm = held.llm
    found: dict[str, Any] = {
        "name": held.entry.name,
        "status": held.status,
        "progress": held.progress,
        "requests": held.users,
    }
    if llm is None:
        return found
    with suppress(BackbayError):  # it is being closed, or its process has died
        now = llm.state()
        found |= {
            "backend": held.entry.backend or backend or (llm.choice.name if llm.choice else None),
            "context": llm.context,
            "images": "image" in llm.modalities,
            "sounds": "audio" in llm.modalities,
            "transcribes": llm.transcribes,
            "slots": [{"busy": slot.busy, "tokens": slot.tokens} for slot in now.slots],
            "waiting": now.waiting,
            "totals": asdict(now.totals),
            "memory": _memory(llm.memory()),
        }
    return found


def _memory(report: BackendMemory) -> list[dict[str, Any]]:
    """For each device: bytes of the weights and the cache of each layer, of the graph, and of everything else."""
    devices = [
        {
            "id": device.id,
            "name": device.name,
            "weights": [layer.size for layer in device.weights],
            "cache": [layer.size for layer in device.cache],
            "graph": device.graph.size,
            "input": report.input_weights.size if device is report.cpu else 0,
            "host": report.host.size if device is report.cpu else 0,
        }
        for device in report.devices
    ]
    for name, companion in report.companions.items():
        devices += [{**each, "name": f"{each['name']}, {name}"} for each in _memory(companion)]
    return devices
