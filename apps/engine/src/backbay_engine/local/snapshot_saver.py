"""Snapshots: how they are taken of requests and prompts, and restored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

from backbay import Backend
from backbay.internals import cached_property

from ..arguments import AdapterMix, require_fitting_prompt
from ..cache.contract import Cache
from ..errors import ForeignSnapshotError
from ..media.prompts import PromptParts
from ..port.saving import no_pictures, require_no_pictures
from ..runner.loop import Runner
from ..runner.requests.generation import GenerationJob
from ..runner.requests.handle import Handle, require_elsewhere, wait_for
from ..runner.requests.job import Job, MediaRowSource
from ..runner.requests.prompt_jobs import SlotCallJob
from ..runner.requests.request import Generate, Prompt
from ..runner.slots import Slot
from ..snapshots import Snapshot
from ..snapshots.saved_rows import RowsSpan, prompt_with_rows, tokens_with_rows
from ..snapshots.snapshot import continuation_options, model_fingerprint
from ..steps.tokens import MediaAwareToken, Token, ids_of, media_spans


@final
class SlotSnapshotter:
    """The snapshots of slots; between two steps, the runner's thread calls `take` and `put`."""

    def __init__(self, backend: Backend, cache: Cache, has_adapter: Callable[[str], bool]) -> None:
        self._backend, self.cache, self._has_adapter = backend, cache, has_adapter

    @cached_property
    def model(self) -> str:
        """The fingerprint of the model."""
        assert self._backend.model is not None
        return model_fingerprint(self._backend.model)

    def take(self, slot: Slot) -> Snapshot:
        """The snapshot of a slot."""
        spans = [RowsSpan.of(span) for span in media_spans(slot.tokens)]
        rows = tuple(span for span in spans if span is not None)
        if len(rows) < len(spans) or any(isinstance(token, MediaAwareToken) for token in slot.tokens):
            raise no_pictures()
        exact = None if slot.exact == sys.maxsize else slot.exact
        contents = self.cache.contents(slot.sequence)
        ids = tuple(ids_of(slot.tokens))
        return Snapshot(self.model, ids, contents, exact, adapters=slot.adapters, rows=rows)

    def check_adapters(self, snapshot: Snapshot) -> None:
        """ForeignSnapshotError unless the adapters are loaded that computed what a snapshot has."""
        for fingerprint, _ in snapshot.adapters:
            if not self._has_adapter(fingerprint):
                raise ForeignSnapshotError(
                    f"the snapshot is of an adapter with the fingerprint {fingerprint}, which is not loaded: load it first"
                )

    def put(self, snapshot: Snapshot, slot: Slot, *, shared: bool = True) -> None:
        """Let an empty slot hold what a snapshot has; `shared` lets it serve any prompt with a beginning of its tokens."""
        length = len(snapshot.tokens)
        self.cache.restore(slot.sequence, snapshot.contents)
        self.cache.remove(slot.sequence, length)
        if not self.cache.can_resume(slot.sequence, length):
            self.cache.remove(slot.sequence, 0)
            raise ForeignSnapshotError(f"the snapshot's cache holds less than its {length} tokens")
        slot.tokens, slot.adapters = tokens_with_rows(snapshot.tokens, snapshot.rows), snapshot.adapters
        slot.exact = sys.maxsize if snapshot.exact is None else snapshot.exact
        slot.restored = 0 if shared else length


@final
class SnapshotSaver:
    """Takes snapshots between the steps of a runner. Any thread may call any method."""

    def __init__(
        self,
        snapshots: SlotSnapshotter,
        runner: Runner,
        lay_out: Callable[[Prompt], tuple[Sequence[Token], MediaRowSource | None]],
        vocabulary_size: int,
    ) -> None:
        self._snapshots, self._runner = snapshots, runner
        self._lay_out, self._vocabulary_size = lay_out, vocabulary_size

    def save_running(self, request: Generate, receiver: object) -> Snapshot | None:
        """The snapshot of a request that waits or runs; None if it is over."""
        _ = self._snapshots.model  # in this thread, as it reads the file
        return self._runner.between(partial(self._saved, request, receiver)).result()

    def save_tokens(self, prompt: Prompt, answer: Sequence[int] = (), adapters: AdapterMix = ()) -> Snapshot:
        """The snapshot of a prompt, and of an answer that is over; what the cache has not is computed."""
        placed, rows = self._lay_out(prompt)
        tokens = [*placed, *answer[:-1]]
        told = "the conversation has {} tokens, the context holds {}"
        require_fitting_prompt(told, len(tokens), self._runner.context)
        _ = self._snapshots.model
        job = SlotCallJob(tokens, self._snapshots.take, rows, computed=True)
        job.adapters = adapters
        found: Snapshot = self._done(job)
        return replace(found, prompt=self._as_given(prompt))

    def restore(self, snapshot: Snapshot, *, shared: bool) -> None:
        """Let a slot hold what a snapshot has."""
        if snapshot.model != self._snapshots.model:
            raise ForeignSnapshotError(
                f"the snapshot is of a model with the fingerprint {snapshot.model}, this one has "
                f"{self._snapshots.model}: only the same weights can go on"
            )
        if (largest := max(snapshot.tokens, default=0)) >= self._vocabulary_size:
            raise ForeignSnapshotError(
                f"the snapshot has the token {largest}, the model's tokens end at {self._vocabulary_size - 1}"
            )
        self._snapshots.check_adapters(snapshot)
        told = "the snapshot has {} tokens, the context holds {}"
        require_fitting_prompt(told, len(snapshot.tokens), self._runner.context)
        if snapshot.tokens:
            put = partial(self._snapshots.put, snapshot, shared=shared)
            self._done(SlotCallJob(snapshot.tokens, put, computed=False))

    def _saved(self, request: Generate, receiver: object) -> Snapshot | None:
        job = self._runner.job_of(receiver)
        if not isinstance(job, GenerationJob):
            return None
        found = self._snapshots.take(job.slot) if job.done else Snapshot(self._snapshots.model, ())
        prompt = self._as_given(require_no_pictures(request.prompt))
        return replace(
            found, prompt=prompt, options=continuation_options(request, job.sampler.seed, job.text.tokens)
        )

    def _as_given(self, prompt: Prompt) -> tuple[Any, ...]:
        """A prompt as users give it, in ids and rows."""
        if not isinstance(prompt, PromptParts):
            return tuple(prompt)
        return prompt_with_rows(self._lay_out(prompt)[0], prompt.own_rows)

    def _done(self, job: Job) -> Any:
        """Run a job, and wait for its result."""
        require_elsewhere(self._runner)
        handle: Handle[Any] = Handle(partial(self._runner.cancel, job), server=self._runner)
        self._runner.submit(job, handle)
        return wait_for(handle)
