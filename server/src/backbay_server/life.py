"""The life of an application's services: from its lifespan events on, or from its first request where none come."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from threading import Lock
from typing import final

from starlette.applications import Starlette
from starlette.types import ASGIApp, Scope

from .apis.endpoint import Services
from .errors import ApiError, UnavailableError
from .transport.guards import Guard


@final
class Life:
    """Starts and ends the services of an application, `app.state.services`.

    make  makes the services, in the event loop that they live in
    """

    def __init__(self, make: Callable[[], Services]) -> None:
        self._make, self._lock = make, Lock()
        self._loop: AbstractEventLoop | None = None  # of services that a request started
        self._services: Services | None = None

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
            services.generator.close()

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

    def _start(self, application: Starlette) -> Services:
        application.state.services = self._services = services = self._make()
        services.pool.preload()
        return services

    def _abandon(self) -> None:
        """Close what requests of an event loop that has ended have started."""
        if self._loop is not None and self._services is not None:
            self._services.pool.abandon()
            self._services.generator.close()
        self._loop = self._services = None


@final
class Starting(Guard):
    """The middleware that starts the services where no lifespan events came."""

    def __init__(self, app: ASGIApp, life: Life) -> None:
        super().__init__(app)
        self._life = life

    def refusal(self, scope: Scope) -> ApiError | None:
        try:
            self._life.require(scope["app"])
        except UnavailableError as error:
            return error
        return None
