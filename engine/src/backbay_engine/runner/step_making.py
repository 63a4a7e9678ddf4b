"""The step of several jobs: their tokens, positions and outputs, and their pictures, in it or in the cache before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import CacheFullError

from ..cache.attention.pictures import PictureCache, PictureWriter, names
from ..models.contract import Model
from ..steps.step import Ints, PictureRows, Step
from ..steps.tokens import PictureToken, places_in
from .requests.job import Job
from .scheduler import Share
from .slots import Slots


def make_step(shares: Sequence[Share]) -> tuple[Step, list[slice]]:
    """The step of these shares, and the rows of each share's results."""
    tokens, positions, sequences, outputs = list[int](), list[int](), list[int](), list[int]()
    rows: list[slice] = []
    seen = False
    for share in shares:
        job, first, answered, done = share.job, len(tokens), len(outputs), share.job.done
        tokens += job.ids(share.count)
        positions += range(done, done + share.count)
        sequences += [job.slot.sequence] * share.count
        for i in job.wanted(share.count):
            outputs.append(first + i)
        rows.append(slice(answered, len(outputs)))
        seen = seen or job.pictures is not None
    step = Step(
        np.array(tokens, np.int32),
        np.array(positions, np.int32),
        np.array(sequences, np.int32),
        np.array(outputs or [len(tokens) - 1], np.int32),
        spans_of(shares) if seen else None,
        _rows_of(shares) if seen else None,
        _axes_of(shares) if seen else None,
    )
    return step, rows


def spans_of(shares: Sequence[Share]) -> Ints | None:
    """The number of each token's span, or -1; None if no span is in the step."""
    numbers: Ints | None = None
    first = number = 0
    for share in shares:
        done = share.job.done
        for span in share.job.spans:
            if done <= span.begin < done + share.count:
                if numbers is None:
                    numbers = np.full(sum(share.count for share in shares), -1, np.int32)
                numbers[first + span.begin - done : first + span.end - done] = number
                number += 1
        first += share.count
    return numbers


def _rows_of(shares: Sequence[Share]) -> PictureRows | None:
    """The rows of pictures that replace tokens of the step; None if there are none."""
    values, places = list[NDArray[np.float32]](), list[int]()
    first = 0
    for share in shares:
        held = share.job.pictures
        tokens = share.job.todo[: share.count] if held is not None else ()
        for place in places_in(tokens):
            replaced = [
                (first + at, token.row)
                for at in range(place.begin, place.end)
                if isinstance(token := tokens[at], PictureToken) and token.row is not None
            ]
            if held is not None and replaced:
                places += [at for at, _ in replaced]
                values.append(held.of(place.picture.content)[[row for _, row in replaced]])
                held.hand_out(len(replaced))
        first += share.count
    return PictureRows(np.concatenate(values), np.array(places, np.int32)) if values else None


def _axes_of(shares: Sequence[Share]) -> Ints | None:
    """M-RoPE's positions of the step; None if they are the tokens' places in all sequences."""
    own = [share.job.axes(share.count) for share in shares]
    if all(axes is None for axes in own):
        return None
    parts = list[Ints]()
    for share, axes in zip(shares, own, strict=True):
        done = share.job.done
        counted = np.arange(done, done + share.count, dtype=np.int32)
        parts.append(np.broadcast_to(counted, (3, share.count)) if axes is None else axes)
    return np.concatenate(parts, axis=1)


# -- pictures for cross attention ----------------------------------------------------------------------------


@final
class Showing:
    """Writes pictures for cross attention into the cache, before the steps of their sequences. All memory is reserved at once."""

    def __init__(self, model: Model, cache: PictureCache, width: int) -> None:
        self._cache = cache
        self._writer = PictureWriter(cache, width, model.cross)

    @property
    def room(self) -> int:
        """The pictures that all sequences together may see."""
        return self._cache.regions

    def has_room(self, job: Job, active: Sequence[Job]) -> bool:
        """Whether the job's pictures fit beside those of the active jobs."""
        return (
            len({name for each in (job, *active) for name in names(each.layout.shown)}) <= self._cache.regions
        )

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
                job.pictures.hand_out(len(cells))
        except BaseException:
            self._cache.show(slot.sequence, ())
            raise

    def close(self) -> None:
        self._writer.close()
