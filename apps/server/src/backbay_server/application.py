"""The ASGI application, and the life of its services."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from threading import Event, Lock
from typing import Any, final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from backbay import OptionError, choose
from backbay.discovery import open_model
from backbay.gguf import nearest
from backbay_engine import LLM

from . import openapi, page
from .apis import ENDPOINTS
from .apis.endpoint import AppServices
from .catalogue import Catalogue, CatalogueEntry, Load, ModelPool, load_entry
from .errors import ApiError, MethodNotAllowedError, RouteNotFoundError, UnavailableError, error_response
from .generation import Generator, Transcriber
from .monitoring import LogMiddleware, Metrics
from .monitoring.routes import routes as monitoring_routes
from .pictures import PictureFetcher
from .settings import ServerSettings
from .transport.request_checks import (
    BodySizeCheck,
    DrainCheck,
    HostCheck,
    KeyCheck,
    OriginCheck,
    RequestCheck,
    RequestDrain,
)
from .transport.request_ids import IdMiddleware


def app(*models: str, settings: ServerSettings | None = None, **given: Any) -> Starlette:
    """The server as an ASGI application: for these models, with the fields of Settings as keywords."""
    if settings is not None and (models or given):
        raise OptionError("app takes settings, or models and the fields of Settings as keywords, not both")
    known = ["settings", *(field.name for field in fields(ServerSettings) if field.name != "models")]
    for name in given:
        if name not in known:
            raise OptionError(f"unknown option {name!r}{nearest(name, known)}")
    chosen = settings or ServerSettings(models=models, **given)
    for backend in filter(None, (chosen.backend, *chosen.further_backends)):
        choose(backend)  # raises if it cannot be used: the server should not begin with it

    def load(entry: CatalogueEntry, progress: Callable[[float], None], cancel: Event) -> LLM:
        own = {"queue": chosen.queue, "worker": chosen.worker}
        return load_entry(chosen, entry, **own, progress=progress, cancel=cancel)

    return build_application(chosen, load)


def build_application(chosen: ServerSettings, load_model: Load) -> Starlette:
    """The server for these settings, over models that a function loads."""
    catalogue = Catalogue(
        chosen.models, chosen.folders, chosen.aliases, chosen.adapters, chosen.further_backends
    )
    for entry in catalogue.named:
        open_model(entry.path).close()  # raises if it is damaged
    drain, metrics, fetcher = (
        RequestDrain(),
        Metrics(),
        PictureFetcher(chosen.picture_hosts, most_bytes=chosen.max_body),
    )

    def services() -> AppServices:
        metrics.pool = pool = ModelPool(catalogue, load_model, max_loaded=chosen.max_loaded)
        generator = Generator(pool, metrics, fetcher, allow_rows=chosen.allow_rows)
        at_once = chosen.parallel * chosen.max_loaded
        transcriber = Transcriber(generator, metrics, at_once=at_once, waiting=chosen.queue)
        return AppServices(chosen, catalogue, pool, generator, transcriber, drain, metrics)

    life = Lifespan(services)
    made = Starlette(
        routes=[
            *(Route(each.path, each, methods=[each.method]) for each in ENDPOINTS),
            *monitoring_routes(with_metrics=chosen.metrics),
            openapi.ROUTE,
            *(page.routes() if chosen.page else []),
        ],
        middleware=[*_middleware(chosen, drain, metrics), Middleware(StartMiddleware, life)],
        lifespan=life.lifespan,
        exception_handlers={HTTPException: _http_error},
    )
    made.state.drain = drain
    return made


def _middleware(settings: ServerSettings, drain: RequestDrain, metrics: Metrics) -> list[Middleware]:
    """What every request passes, the first one first."""
    keys = [Middleware(KeyCheck, settings.keys)] if settings.keys else []
    return [
        Middleware(LogMiddleware, metrics),
        Middleware(IdMiddleware),
        Middleware(HostCheck, settings.hosts),
        Middleware(OriginCheck, settings.origins),
        *keys,
        Middleware(DrainCheck, drain),
        Middleware(BodySizeCheck, settings.max_body),
    ]


async def _http_error(request: Request, error: Exception) -> Response:
    """No route, or none of this method: the error of the API whose path it would be."""
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    absent = RouteNotFoundError(f"there is nothing at {path}")
    found = MethodNotAllowedError(f"{path} does not take {method}") if error.status_code == 405 else absent
    response = error_response(found, request.scope)
    response.headers.update(error.headers or {})
    return response


# -- the life of the services: from lifespan events on, or from the first request where none come --------


@final
class Lifespan:
    """Starts and ends the services of an application, `app.state.services`; each is made in the loop it lives in."""

    def __init__(self, make: Callable[[], AppServices]) -> None:
        self._make, self._lock = make, Lock()
        self._loop: AbstractEventLoop | None = None  # of services that a request started
        self._services: AppServices | None = None

    @asynccontextmanager
    async def lifespan(self, application: Starlette) -> AsyncIterator[None]:
        """Services from the application's start to its end."""
        with self._lock:
            self._abandon()
            services = self._start(application)
        try:
            yield
        finally:
            await services.pool.close()
            services.close()

    def require(self, application: Starlette) -> None:
        """Start the services unless they run. They end with the application, or with the process.

        UnavailableError if a request in another event loop, which still runs, has started them.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._services is not None and self._loop in (None, loop):
                return
            if self._loop is not None and not self._loop.is_closed():
                raise UnavailableError(
                    "the models are held in another event loop, where the application's first request came; send the "
                    "application the events of ASGI's lifespan, or all requests from one event loop"
                )
            self._abandon()
            self._start(application)
            self._loop = loop

    def _start(self, application: Starlette) -> AppServices:
        application.state.services = self._services = services = self._make()
        services.pool.preload()
        return services

    def _abandon(self) -> None:
        """Close what requests of an event loop that has ended have started."""
        if self._loop is not None and self._services is not None:
            self._services.pool.abandon()
            self._services.close()
        self._loop = self._services = None


@final
class StartMiddleware(RequestCheck):
    """The middleware that starts the services where no lifespan events came."""

    def __init__(self, app: ASGIApp, life: Lifespan) -> None:
        super().__init__(app)
        self._life = life

    def refusal(self, scope: Scope) -> ApiError | None:
        try:
            self._life.require(scope["app"])
        except UnavailableError as error:
            return error
        return None
