"""Endpoints: a path, the struct of its body, and the function that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, final

from starlette.types import Receive, Scope, Send

from ..catalogue import Catalogue, ModelPool
from ..errors import api_error, error_body, error_response
from ..generation import Generator, Transcriber
from ..monitoring import Metrics
from ..settings import ServerSettings
from ..transport.answers import EVENT_STREAM, JsonResponse, StreamResponse, TextResponse
from ..transport.bodies import LONG, BodyDecoder, DisconnectedError, read_body, require_plain, while_connected
from ..transport.request_checks import RequestDrain
from ..transport.request_ids import request_id
from .fields import check_refused, ignored_names

Body = TypeVar("Body")
Made = TypeVar("Made")


@final
@dataclass(frozen=True)
class AppServices:
    """What the application has for its endpoints; `app.state.services`."""

    settings: ServerSettings
    catalogue: Catalogue
    pool: ModelPool
    generator: Generator
    transcriber: Transcriber
    drain: RequestDrain
    metrics: Metrics

    def close(self) -> None:
        """End the threads that work for requests."""
        self.generator.close()
        self.transcriber.close()


@final
class EndpointCall:
    """A request in progress, as its endpoint sees it."""

    def __init__(self, scope: Scope, length: int) -> None:
        self.scope, self._length = scope, length  # of the body
        self.id = request_id(scope)

    async def converted(self, convert: Callable[[Body], Made], body: Body) -> Made:
        """What a function makes of the body; beside the event loop if the body is long."""
        return await asyncio.to_thread(convert, body) if self._length > LONG else convert(body)

    @property
    def services(self) -> AppServices:
        services: AppServices = self.scope["app"].state.services
        return services

    @property
    def path_params(self) -> dict[str, str]:
        params: dict[str, str] = self.scope["path_params"]
        return params


@final
@dataclass(frozen=True)
class Endpoint(Generic[Body]):
    """A method of a path: an ASGI application."""

    method: str
    path: str
    handler: Callable[[EndpointCall, Body], Awaitable[JsonResponse | StreamResponse | TextResponse]]
    body: type[Body] | None = None  # the struct of the request's body; None: it has none
    answers: Any = None  # the struct of the answer's body
    chunks: Any = None  # the struct of a chunk of the answer's stream; None: there are no streams
    stream_type: str = EVENT_STREAM
    form: bool = False  # the body is a form, multipart/form-data, in place of JSON
    plain: bool = False  # some answers are plain text

    @property
    def summary(self) -> str:
        """What it does, by the first line of the handler's docstring."""
        return (self.handler.__doc__ or "").partition("\n")[0]

    @cached_property
    def _decoder(self) -> BodyDecoder[Body] | None:
        return None if self.body is None else BodyDecoder(self.body, check_refused, form=self.form)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        try:
            require_plain(scope)
            body = await read_body(receive)
        except DisconnectedError:
            return
        except Exception as error:  # noqa: BLE001  every error has an answer
            await error_response(api_error(error), scope)(scope, receive, send)
            return
        await while_connected(receive, self._answer(scope, receive, send, body))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: bytes) -> None:
        call, begun = EndpointCall(scope, len(body)), False

        async def sending(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        def fail(error: BaseException) -> bytes:
            return error_body(api_error(error), scope)

        try:
            decoded: Any = None if self._decoder is None else await self._decoder.decoded(scope, body)
            answer = await self.handler(call, decoded)
            names = ignored_names(decoded)
            await answer.send(sending, {"x-backbay-ignored": ", ".join(names)} if names else {}, fail)
        except Exception as error:
            if begun:
                raise  # nothing more can be told
            await error_response(api_error(error), scope)(scope, receive, send)
