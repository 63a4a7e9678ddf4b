"""A replica: a model in a process of its own, asked by applications in others."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from time import monotonic, time
from typing import Any, Final, TypeAlias, final
from weakref import WeakKeyDictionary

from backbay import BackendMemory, BackendUnavailableError
from backbay_engine import Handle, State, TokenStep
from backbay_engine.remote import (
    Generate,
    Message,
    ModelDescription,
    Question,
    Request,
    describe_model,
    pack_error,
    port_of,
)
from backbay_server import ServerSettings
from backbay_server.remote import Catalogue, CatalogueEntry, EventLoopBridge, load_entry

from .same_model import require_same

log = logging.getLogger(__name__)
Watch: TypeAlias = Callable[[State, int], None]
"""Gets the state, and the most tokens of a sequence, at each check of the replica's health."""
STALLED: Final = 300.0  # seconds after which a model that should compute, and changes nothing, is ill


@final
class Replica:
    """Loads a model, and answers requests about it in the event loop of whoever asks.

    expected  the fingerprint of the model; another one is an error
    watch     makes a `Watch` for the model of a name
    """

    def __init__(
        self, settings: ServerSettings, name: str, expected: str, watch: Callable[[str], Watch] | None = None
    ) -> None:
        entry = find_entry(settings, name)
        require_same(name, entry.path, entry.projector, expected)
        self._llm = load_entry(settings, entry)
        self._port = port_of(self._llm)
        self._port.constraint_maker.tried = True  # by the application
        self._description = describe_model(self._port), self._port.memory()
        self._watch = None if watch is None else watch(name)
        self._bridges = WeakKeyDictionary[AbstractEventLoop, EventLoopBridge]()
        self._seen, self._seen_at = State(), monotonic()
        log.info("the model %s is loaded", name)

    async def describe(self) -> tuple[ModelDescription, BackendMemory]:
        """What an application must know of the model."""
        return self._description

    async def stream(self, message: Message) -> AsyncIterator[list[Any]]:
        """What a request or a question gives, in batches: an empty one at its begin, then whatever has come since the last.

        Items are steps, then the result or an error that was packed. A request for text is to begin by a time of `time.time`.
        """
        if not isinstance(message, Request):
            yield []
            yield [await asyncio.to_thread(self._answer, message)]
            return
        if isinstance(message, Generate):
            message = replace(message, begin_by=message.begin_by - time() + monotonic())
        inbox = asyncio.Queue[Any]()
        loop = asyncio.get_running_loop()
        bridge = self._bridges.get(loop) or self._bridges.setdefault(loop, EventLoopBridge(loop))
        submit = partial(self._port.submit, message, partial(bridge.call, inbox.put_nowait))
        beginning = asyncio.ensure_future(asyncio.to_thread(submit))
        yield []
        try:
            await asyncio.shield(beginning)
            while True:
                batch = [await inbox.get()]
                while not inbox.empty():
                    batch.append(inbox.get_nowait())
                yield [pack_error(item) if isinstance(item, BaseException) else item for item in batch]
                if not isinstance(batch[-1], TokenStep):
                    return
        except Exception as error:  # noqa: BLE001  the request gets it
            yield [pack_error(error)]
        finally:
            beginning.add_done_callback(_cancel)

    def _answer(self, question: Question[Any]) -> Any:
        """The answer, or an error that was packed."""
        try:
            if not isinstance(question, Question) or question.of_a_process:
                raise ValueError(f"replicas do not answer {question!r}")
            return self._port.ask(question)
        except Exception as error:  # noqa: BLE001  the question gets it
            return pack_error(error)

    def check_health(self) -> None:
        """An error if the model is closed, or stands still; whoever runs the replica then puts another in its place."""
        state, now = self._port.state(), monotonic()
        if self._watch is not None:
            self._watch(state, self._llm.context)
        if state != self._seen or not state.busy:
            self._seen, self._seen_at = state, now
        elif now - self._seen_at > STALLED:
            raise BackendUnavailableError(
                f"{state.busy} requests run, and nothing came of them for {STALLED:g} s"
            )


def find_entry(settings: ServerSettings, name: str) -> CatalogueEntry:
    """The model of a name, by the settings that all machines have."""
    found = Catalogue(settings.models, (), settings.aliases).named_so(name)
    assert found is not None  # the settings name it
    return found


def _cancel(beginning: asyncio.Future[Handle[Any]]) -> None:
    """End a request, unless it never began."""
    if not beginning.cancelled() and beginning.exception() is None:
        beginning.result().cancel()
