"""Replicas on Ray Serve: its handles, and its errors as ours."""

# Ray may be missing where types are checked:
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle

from backbay_engine.remote import Message
from backbay_server.remote import UnavailableError

from .link import ReplicaLostError, ReplicasBusyError, ReplicaTransport


@final
class RayServeTransport(ReplicaTransport):
    """The replicas of a deployment."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle

    async def stream(self, message: Message, *, session: str) -> AsyncIterator[list[Any]]:
        asked = self._handle.options(method_name="stream", stream=True, session_id=session)
        answer = asked.remote(message)
        try:
            with translate_errors():
                async for batch in answer:
                    yield batch
        except (GeneratorExit, asyncio.CancelledError):  # nobody waits for the rest
            with suppress(Exception):  # that of an answer that failed meanwhile
                answer.cancel()
            raise

    async def call(self, method: str) -> Any:
        with translate_errors():
            return await self._handle.options(method_name=method).remote()


@contextmanager
def translate_errors() -> Iterator[None]:
    """Ray's errors, told apart by what they mean for a request."""
    try:
        yield
    except BackPressureError as error:
        raise ReplicasBusyError(
            f"{error.args[0]} requests wait for a replica already; try again later"
        ) from None
    except DeploymentUnavailableError as error:
        raise UnavailableError(f"the model has no replicas: {error.message}") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ReplicaLostError("it was told to end") from None
    except RayTaskError as error:
        if isinstance(error.cause, RayActorError):
            raise ReplicaLostError(_first_line(error.cause)) from None
        raise
    except (RayError, ReplicaUnavailableError) as error:  # an actor that died, an object lost with its node
        raise ReplicaLostError(_first_line(error)) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
