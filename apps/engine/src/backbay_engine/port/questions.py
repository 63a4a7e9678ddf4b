"""Questions: values that say what a model is to answer beside its requests. Each answers itself where the model is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackendMemory
from backbay.plugin import Cancel

from ..arguments import AdapterMix
from ..media.content_parts import Media
from ..media.prompts import PromptParts
from ..media.row_store import StoreCounters
from ..media.rows import PreparedMedia
from ..runner.requests.handle import require_elsewhere
from ..runner.requests.request import Generate, Prompt
from ..runner.state import State
from ..snapshots import Snapshot

if TYPE_CHECKING:
    from ..local.port import LocalPort

T = TypeVar("T")


class QuestionLane(Enum):
    """The queues of a worker's questions, each with a thread of its own, which answers one after the other."""

    AT_ONCE = "at once"
    """No thread of its own: the answer takes no time."""
    QUICK = "questions"
    EMBEDDINGS = "embeddings"
    RUNNING = "snapshots"
    """Waits for the end of a step."""
    SEQUENCES = "sequences"
    """Waits for a free sequence."""
    IDLENESS = "idleness"
    """Waits until nothing runs."""


class Question(ABC, Generic[T]):
    """A question about a model, with an answer of this type.

    of_a_process    whether its answer means something to one process alone
    needs_a_worker  whether a worker is started for it, if none runs; otherwise its answer is None then
    """

    lane: ClassVar[QuestionLane] = QuestionLane.QUICK
    of_a_process: ClassVar[bool] = False
    needs_a_worker: ClassVar[bool] = True

    @abstractmethod
    def answer(self, port: LocalPort, cancel: Cancel | None) -> T:
        """Answer the question where the model is."""


@final
@dataclass(frozen=True)
class Embed(Question[NDArray[np.float32]]):
    """Asks for a vector for each prompt, (prompts, width), or for its scores, (prompts, labels)."""

    prompts: Sequence[Prompt]
    adapter: AdapterMix = ()
    lane = QuestionLane.EMBEDDINGS

    def answer(self, port: LocalPort, cancel: Cancel | None) -> NDArray[np.float32]:
        return port.embed(self.prompts, cancel, self.adapter)


@final
@dataclass(frozen=True)
class GetAdapters(Question[Mapping[str, str]]):
    """Asks for the files of the adapters by name."""

    def answer(self, port: LocalPort, cancel: Cancel | None) -> Mapping[str, str]:
        return port.adapters.paths


@final
@dataclass(frozen=True)
class AddAdapter(Question[None]):
    """Loads an adapter, between two steps."""

    name: str
    path: str
    lane = QuestionLane.RUNNING
    of_a_process = True

    def answer(self, port: LocalPort, cancel: Cancel | None) -> None:
        port.add_adapter(self.name, self.path)


@final
@dataclass(frozen=True)
class RemoveAdapter(Question[None]):
    """Unloads an adapter, between two steps."""

    name: str
    lane = QuestionLane.RUNNING
    of_a_process = True

    def answer(self, port: LocalPort, cancel: Cancel | None) -> None:
        port.remove_adapter(self.name)


@final
@dataclass(frozen=True)
class PrepareMedia(Question[PreparedMedia]):
    """Asks for a picture or a sound as the encoder takes it: Prepared or PreparedAudio."""

    given: Media

    def answer(self, port: LocalPort, cancel: Cancel | None) -> PreparedMedia:
        return port.require_media().prepare(self.given)


@final
@dataclass(frozen=True)
class Tokenize(Question[list[int]]):
    """Asks for the token ids of a prompt of parts, with placeholders where rows go."""

    parts: PromptParts

    def answer(self, port: LocalPort, cancel: Cancel | None) -> list[int]:
        return port.encode(self.parts)


@final
@dataclass(frozen=True)
class EmbedMedia(Question[NDArray[np.float32]]):
    """Asks for the rows of a picture or a sound, (rows, width)."""

    given: Media

    def answer(self, port: LocalPort, cancel: Cancel | None) -> NDArray[np.float32]:
        require_elsewhere(port.runner)
        return port.require_media().embed(self.given)


@final
@dataclass(frozen=True)
class GetStoreCounters(Question[StoreCounters]):
    """Asks for the counters of the store of rows."""

    def answer(self, port: LocalPort, cancel: Cancel | None) -> StoreCounters:
        return port.require_media().store.counters


@final
@dataclass(frozen=True)
class GetState(Question[State]):
    """Asks for the requests and the sequences now."""

    lane = QuestionLane.AT_ONCE

    def answer(self, port: LocalPort, cancel: Cancel | None) -> State:
        return port.state()


@final
@dataclass(frozen=True)
class GetMemory(Question[BackendMemory]):
    """Asks for the memory of the weights, the cache and the largest graph, and for that of the encoder."""

    def answer(self, port: LocalPort, cancel: Cancel | None) -> BackendMemory:
        return port.memory()


@final
@dataclass(frozen=True)
class ClearCaches(Question[None]):
    """Empties the cache, and the store of rows, as soon as no request runs."""

    lane = QuestionLane.IDLENESS
    needs_a_worker = False

    def answer(self, port: LocalPort, cancel: Cancel | None) -> None:
        port.forget()


@final
@dataclass(frozen=True)
class GetAnswerSnapshot(Question[Snapshot | None]):
    """Asks for the snapshot of a request for text, by its number; None if it is over."""

    number: int
    request: Generate
    lane = QuestionLane.RUNNING
    of_a_process = True

    def answer(self, port: LocalPort, cancel: Cancel | None) -> Snapshot | None:
        return port.save_running(self.number, self.request)


@final
@dataclass(frozen=True)
class GetPromptSnapshot(Question[Snapshot]):
    """Asks for the snapshot of a prompt, and of its answer if there is one; what the cache has not is computed."""

    prompt: Prompt
    answered: Sequence[int] = ()
    adapter: AdapterMix = ()
    lane = QuestionLane.SEQUENCES
    of_a_process = True

    def answer(self, port: LocalPort, cancel: Cancel | None) -> Snapshot:
        adapters = port.adapters.resolved(self.adapter)
        return port.saver().save_tokens(self.prompt, self.answered, adapters)


@final
@dataclass(frozen=True)
class RestoreSnapshot(Question[None]):
    """Lets a sequence hold what a snapshot has, as soon as one is free."""

    snapshot: Snapshot
    shared: bool
    lane = QuestionLane.SEQUENCES
    of_a_process = True

    def answer(self, port: LocalPort, cancel: Cancel | None) -> None:
        port.saver().restore(self.snapshot, shared=self.shared)
