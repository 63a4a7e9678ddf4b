"""The ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from threading import Event
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from backbay import OptionError, choose
from backbay.discovery import open_model
from backbay.gguf import nearest
from backbay_engine import LLM

from . import openapi, page
from .apis import ENDPOINTS
from .apis.endpoint import Services
from .catalogue import Catalogue, Entry, Load, Pool, load_entry
from .errors import MethodError, RouteNotFoundError, error_response
from .generation import Generator
from .life import Life, Starting
from .pictures import Fetcher
from .settings import Settings
from .transport.drain import Drain, Draining
from .transport.guards import BodyLimit, Hosts, Origins
from .transport.keys import Keys
from .watching import Log, Metrics
from .watching.routes import routes as watching_routes


def app(*models: str, settings: Settings | None = None, **given: Any) -> Starlette:
    """The server as an ASGI application: for these models, with the fields of Settings as keywords."""
    if settings is not None and (models or given):
        raise OptionError("app takes settings, or models and the fields of Settings as keywords, not both")
    known = ["settings", *(field.name for field in fields(Settings) if field.name != "models")]
    for name in given:
        if name not in known:
            raise OptionError(f"unknown option {name!r}{nearest(name, known)}")
    chosen = settings or Settings(models=models, **given)
    if chosen.backend is not None:
        choose(chosen.backend)  # raises if it cannot be used: the server should not begin with it

    def load(entry: Entry, progress: Callable[[float], None], cancel: Event) -> LLM:
        own = {"queue": chosen.queue, "worker": chosen.worker}
        return load_entry(chosen, entry, **own, progress=progress, cancel=cancel)

    return application(chosen, load)


def application(chosen: Settings, load_model: Load) -> Starlette:
    """The server for these settings, over models that a function loads."""
    catalogue = Catalogue(chosen.models, chosen.folders, chosen.aliases)
    for entry in catalogue.named:
        open_model(entry.path).close()  # raises if it is damaged
    drain, metrics, fetcher = Drain(), Metrics(), Fetcher(chosen.picture_hosts, most_bytes=chosen.max_body)

    def services() -> Services:
        metrics.pool = pool = Pool(catalogue, load_model, max_loaded=chosen.max_loaded)
        return Services(chosen, catalogue, pool, Generator(pool, metrics, fetcher), drain, metrics)

    life = Life(services)
    made = Starlette(
        routes=[
            *(Route(each.path, each, methods=[each.method]) for each in ENDPOINTS),
            *watching_routes(with_metrics=chosen.metrics),
            openapi.ROUTE,
            *(page.routes() if chosen.page else []),
        ],
        middleware=[*_middleware(chosen, drain, metrics), Middleware(Starting, life)],
        lifespan=life.lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    made.state.drain = drain
    return made


def _middleware(settings: Settings, drain: Drain, metrics: Metrics) -> list[Middleware]:
    """What every request passes, the first one first."""
    keys = [Middleware(Keys, settings.keys)] if settings.keys else []
    return [
        Middleware(Log, metrics),
        Middleware(Hosts, settings.hosts),
        Middleware(Origins, settings.origins),
        *keys,
        Middleware(Draining, drain),
        Middleware(BodyLimit, settings.max_body),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """No route, or none of this method: the error of the API whose path it would be."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    found = (
        MethodError(f"{path} does not take {method}")
        if error.status_code == 405
        else RouteNotFoundError(f"there is nothing at {path}")
    )
    response = error_response(found, request.scope)
    response.headers.update(error.headers or {})
    return response
