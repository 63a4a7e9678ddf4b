"""Pictures for cross attention: in the cache before the steps of their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from backbay import CacheFullError

from ..cache.attention.pictures import PictureCache, PictureWriter, names
from ..models.contract import Model
from .requests.job import Job
from .slots import Slots


@final
class Showing:
    """Lets the sequences of jobs see the jobs' pictures. Everything is reserved when it is made."""

    def __init__(self, model: Model, cache: PictureCache, width: int) -> None:
        self._cache = cache
        self._writer = PictureWriter(cache, width, model.cross)

    @property
    def room(self) -> int:
        """The pictures that all sequences together may see."""
        return self._cache.regions

    def has_room(self, job: Job, active: Sequence[Job]) -> bool:
        """Whether the job's pictures fit beside those of the active jobs."""
        return len({name for each in (job, *active) for name in names(each.shown)}) <= self._cache.regions

    def show(self, job: Job, slots: Slots) -> None:
        """Write the pictures of a job that its sequence does not see yet; idle sequences give up theirs if need be."""
        slot = job.slot
        if slot is None or job.pictures is None:
            return
        wanted = job.shown
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
