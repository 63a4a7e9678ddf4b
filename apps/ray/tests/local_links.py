"""Replicas in this process, some of which are lost when a test says so."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Any

from backbay_engine import LLM
from backbay_engine.remote import RemotePort
from backbay_ray.link import RayLink, ReplicaLostError, ReplicasBusyError, ReplicaTransport
from backbay_ray.replica import Replica, find_entry
from backbay_ray.same_model import fingerprint
from backbay_server import ServerSettings

UNASKED = -1  # a cut before the replica has begun


class LocalReplicas(ReplicaTransport):
    """Asks replicas in turn.

    cuts      for each time that a replica is asked, the items after which it is lost; None, and at the end: it is not
    refusals  for each time, whether there is no room
    losses    replicas that are lost one after the other before they have told what their model is
    """

    def __init__(
        self,
        replicas: Iterable[Replica],
        cuts: Iterable[int | None] = (),
        refusals: Iterable[bool] = (),
        losses: int = 0,
    ) -> None:
        self._replicas, self.cuts, self.refusals = cycle(replicas), iter(cuts), iter(refusals)
        self.losses = losses
        self.sessions: list[str] = []
        self.open = 0

    def is_idle(self) -> bool:
        return self.open == 0

    async def stream(self, message: Any, *, session: str) -> AsyncIterator[list[Any]]:
        if next(self.refusals, False):
            raise ReplicasBusyError("4 requests wait")
        self.sessions.append(session)
        cut = next(self.cuts, None)
        if cut == UNASKED:
            raise ReplicaLostError("killed")
        self.open += 1
        try:
            async with aclosing(next(self._replicas).stream(sent(message))) as batches:
                given = 0
                async for batch in batches:
                    if not batch:
                        yield []
                    for item in sent(batch):
                        if given == cut:
                            raise ReplicaLostError("killed")
                        given += 1
                        yield [item]
        finally:
            self.open -= 1

    async def call(self, method: str) -> Any:
        if self.losses:
            self.losses -= 1
            raise ReplicaLostError("killed")
        return sent(await getattr(next(self._replicas), method)())


def sent(value: Any) -> Any:
    """A value as it arrives in another process."""
    return pickle.loads(pickle.dumps(value))


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def settings_of(model: Path, **given: Any) -> ServerSettings:
    fields = {"backend": "cpu_ref", "context": 512, "parallel": 4, "threads": 1, "hosts": ("test",), **given}
    return ServerSettings(models=(str(model),), **fields)


def replica_of(model: Path, **given: Any) -> Replica:
    settings = settings_of(model, **given)
    entry = find_entry(settings, model.stem)
    return Replica(settings, entry.name, fingerprint(entry.path, entry.projector))


def model_of(
    replicas: ReplicaTransport, loop: asyncio.AbstractEventLoop, *, name: str = "scripted", retries: int = 3
) -> LLM:
    """The model as an application sees it."""
    port = RemotePort(RayLink(replicas, loop, name, retries), parallel=4)
    port.load()
    return LLM(port)
