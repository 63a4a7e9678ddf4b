"""The step of several jobs: their tokens, positions and outputs, and their pictures, in it or in the cache before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from backbay import CacheFullError

from ..adapters.stack import AdapterStack
from ..cache.attention.media import MediaCacheGraph, MediaCrossAttentionCache, content_names
from ..models.contract import Model
from ..steps.step import Ints, MediaRows, Step, text_step
from ..steps.tokens import MediaToken, Token, ids_of, media_spans
from .requests.job import Job, MediaRowSource
from .scheduler import StepShare
from .slots import Slots


def make_step(shares: Sequence[StepShare], stack: AdapterStack | None = None) -> tuple[Step, list[slice]]:
    """The step of these shares, and the rows of each share's results; `stack` has their adapters."""
    tokens, positions, sequences, outputs = list[int](), list[int](), list[int](), list[int]()
    results, spans = list[slice](), list[slice]()
    rows, axes = list[MediaRows](), list[tuple[int, Ints]]()
    for share in shares:
        job, count, first, done = share.job, share.count, len(tokens), share.job.done
        tokens += job.ids(count)
        positions += range(done, done + count)
        sequences += [job.slot.sequence] * count
        answered = len(outputs)
        for i in job.wanted(count):
            outputs.append(first + i)
        results.append(slice(answered, len(outputs)))
        if job.pictures is not None:
            begun = [span for span in job.spans if done <= span.begin < done + count]
            spans += [slice(first + span.begin - done, first + span.end - done) for span in begun]
            rows += _rows_of(job.pictures, job.todo[:count], first)
            own = job.axes(count)
            axes += [] if own is None else [(first, own)]
    step = Step(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(sequences, np.int32),
        np.array(outputs or [len(tokens) - 1], np.int32),
        answering=[share.job.slot.sequence for share in shares if share.job.answering],
    )
    if stack is not None and any(share.job.adapters for share in shares):
        mixes = [share.job.adapters for share in shares]
        step = replace(step, adapters=stack.mixed([share.count for share in shares], mixes))
    return _with_pictures(step, spans, rows, axes) if spans or rows or axes else step, results


def text_step_of(texts: Sequence[tuple[Sequence[Token], MediaRowSource | None]]) -> Step:
    """The step of whole texts, each with its rows; the first token of each is an output."""
    step, rows, first = text_step([ids_of(tokens) for tokens, _ in texts]), list[MediaRows](), 0
    for tokens, source in texts:
        rows += () if source is None else _rows_of(source, tokens, first)
        first += len(tokens)
    return replace(step, rows=MediaRows.joined(rows)) if rows else step


def _rows_of(pictures: MediaRowSource, tokens: Sequence[Token], first: int) -> Iterator[MediaRows]:
    """The rows that replace these tokens, the first of which is at `first` in the step."""
    for span in media_spans(tokens):
        replaced = [
            (first + at, token.row)
            for at in range(span.begin, span.end)
            if isinstance(token := tokens[at], MediaToken) and token.row is not None
        ]
        if replaced:
            where, numbers = np.array(replaced, np.int32).T
            yield MediaRows(pictures.of(span.media.content)[numbers], where)
            pictures.hand_out(span.media.content, len(replaced))


def _with_pictures(
    step: Step, spans: Sequence[slice], rows: Sequence[MediaRows], axes: Sequence[tuple[int, Ints]]
) -> Step:
    numbers = np.full(step.size, -1, np.int32)
    for number, span in enumerate(spans):
        numbers[span] = number
    positions = np.tile(step.positions, (3, 1))
    for first, own in axes:
        positions[:, first : first + own.shape[1]] = own
    replaced = MediaRows.joined(rows)
    return replace(step, spans=numbers if spans else None, rows=replaced, axes=positions if axes else None)


# -- pictures for cross attention ----------------------------------------------------------------------------


@final
class MediaCacheWriter:
    """Writes pictures for cross attention into the cache, before the steps of their sequences. All memory is reserved at once."""

    def __init__(self, model: Model, cache: MediaCrossAttentionCache, width: int) -> None:
        self._cache = cache
        self._writer = MediaCacheGraph(cache, width, model.cross)

    @property
    def room(self) -> int:
        """The pictures that all sequences together may see."""
        return self._cache.regions

    def has_room(self, job: Job, active: Sequence[Job]) -> bool:
        """Whether the job's pictures fit beside those of the active jobs."""
        wanted = {name for each in (job, *active) for name in content_names(each.layout.shown)}
        return len(wanted) <= self._cache.regions

    def show(self, job: Job, slots: Slots) -> None:
        """Write the pictures of a job that its sequence does not see yet; idle sequences give up theirs if need be."""
        if job.pictures is None:
            return
        slot, wanted = job.slot, job.layout.shown
        if self._cache.shown(slot.sequence) == wanted:
            return
        idle = sorted((each for each in slots.all if not each.busy), key=lambda each: each.last_used)
        while True:
            try:
                new = self._cache.show(slot.sequence, wanted)
                break
            except CacheFullError:
                holder = next((each for each in idle if self._cache.shown(each.sequence)), None)
                if holder is None:
                    raise
                slots.clear(holder)
        try:
            for shown, cells in new:
                self._writer.write(job.pictures.of(shown.content), cells)
                job.pictures.hand_out(shown.content, len(cells))
        except BaseException:
            self._cache.show(slot.sequence, ())
            raise

    def close(self) -> None:
        self._writer.close()
