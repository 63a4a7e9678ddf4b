"""The transcriber: it leases a model that writes transcripts, and gives the segments of sounds as they come."""

from __future__ import annotations

import asyncio
from asyncio import Queue
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TypeAlias, final

from backbay_engine import LLM, Segment, Transcript, Transcription

from ..errors import BusyError
from ..monitoring import Metrics, RequestMeter
from .answer import EventLoopBridge
from .generator import Generator
from .prompt_size import require_short
from .requests import SpeechRequest

Item: TypeAlias = Segment | Transcript | BaseException


@final
class SpeechFeed:
    """The segments of a sound: an asynchronous iterator. When it has ended, `transcript` is the whole."""

    def __init__(self, bridge: EventLoopBridge, meter: RequestMeter) -> None:
        self.transcript = Transcript(())
        self._bridge, self._meter, self._items = bridge, meter, Queue[Item]()
        self._running: Transcription | None = None
        self._closed = False

    def transcribe(self, llm: LLM, request: SpeechRequest) -> None:
        """Transcribe a sound, in the caller's thread."""
        try:
            if self._closed:
                return
            self._running = running = llm.transcribe(request.sound, stream=True, **request.given())
            if self._closed:  # in the meantime
                running.close()
            segments = []
            for segment in running:
                segments.append(segment)
                self._bridge.call(self._items.put_nowait, segment)
            whole = Transcript(tuple(segments), running.language, request.task, running.duration)
            self._bridge.call(self._items.put_nowait, whole)
        except BaseException as error:  # noqa: BLE001  the client gets it
            self._bridge.call(self._items.put_nowait, error)

    def close(self) -> None:
        """End what still runs: nobody waits for it."""
        self._closed = True
        if self._running is not None:
            self._running.close()

    async def __aiter__(self) -> AsyncIterator[Segment]:
        while isinstance(item := await self._items.get(), Segment):
            self._meter.step(len(item.tokens))
            yield item
        if isinstance(item, BaseException):
            raise item
        self.transcript = item


@final
class Transcriber:
    """Transcribes sounds: `at_once` at a time, since all have their samples in memory, and `waiting` more of each model."""

    def __init__(self, generator: Generator, metrics: Metrics, *, at_once: int, waiting: int) -> None:
        self._generator, self._metrics, self._most = generator, metrics, at_once + waiting
        self._bridge = EventLoopBridge(asyncio.get_running_loop())
        self._threads = ThreadPoolExecutor(at_once, "backbay speech")
        self._running = Counter[str]()

    @asynccontextmanager
    async def transcribing(self, request: SpeechRequest) -> AsyncIterator[SpeechFeed]:
        """The segments of a sound; leaving the block ends what still runs."""
        begun = perf_counter()
        with await self._generator.lease(request.model) as lease:
            require_short(lease.llm, request.prompt)
            if self._running[lease.name] >= self._most:
                raise BusyError(f"{self._most} sounds are transcribed, or wait, already; try again later")
            self._running[lease.name] += 1
            meter = self._metrics.begin(lease.name, "transcription", begun)
            feed = SpeechFeed(self._bridge, meter)
            work = self._threads.submit(feed.transcribe, lease.llm, request)
            try:
                yield feed
                meter.end("stop")
            except (asyncio.CancelledError, GeneratorExit):
                meter.cancel()  # the client has left
                raise
            except BaseException:
                meter.fail()
                raise
            finally:
                work.cancel()
                feed.close()
                self._running[lease.name] -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
