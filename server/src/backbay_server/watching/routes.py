"""Routes for those who watch the server: health, readiness, metrics, and the state."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import UnavailableError, error_response
from .metrics import CONTENT_TYPE
from .state import state

JSON = "application/json"


async def health(request: Request) -> Response:
    """Whether the process serves requests at all."""
    return Response(b'{"status":"ok"}', media_type=JSON)


async def ready(request: Request) -> Response:
    """Whether a request sent now would be answered soon; 503 while models load, and while the server drains."""
    drain, pool = request.app.state.services.drain, request.app.state.services.pool
    if drain.begun:
        return error_response(UnavailableError("the server is shutting down"), request.scope)
    if not pool.ready:
        return error_response(UnavailableError("the models are being loaded"), request.scope)
    return Response(b'{"status":"ready"}', media_type=JSON)


async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' format, with the option --metrics."""
    found = await asyncio.to_thread(
        request.app.state.services.metrics.text
    )  # a model's process may take long to answer
    return Response(found, media_type=CONTENT_TYPE)


async def show_state(request: Request) -> Response:
    """The slots, queues, speed and memory of the models, as the page shows them."""
    held = request.app.state.services
    found = await asyncio.to_thread(state, held.pool, held.metrics, draining=held.drain.begun)
    return Response(msgspec.json.encode(found), media_type=JSON)


def routes(*, with_metrics: bool) -> list[Route]:
    found = [
        Route("/health", health),
        Route("/v1/health", health),
        Route("/ready", ready),
        Route("/state", show_state),
    ]
    return [*found, Route("/metrics", metrics)] if with_metrics else found
