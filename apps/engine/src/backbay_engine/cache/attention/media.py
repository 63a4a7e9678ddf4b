"""The cache of pictures that text attends to: several for each sequence, each written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Backend, CacheFullError, Context, DType, Tensor

from ...steps.step import Ints, Step
from ..cells.cell_table import TokenRun, token_runs
from ..cells.contents import CacheContents
from ..cells.storage import pad_cells
from ..contract import CachePlan, CacheSizes, own_plan
from .cross_attention import (
    BoundCrossAttentionCache,
    CrossAttentionCache,
    CrossAttentionPlan,
    PositionRun,
    VisibleRows,
)

CHUNK = 1024  # rows that one run of the writer takes


Name: TypeAlias = tuple[bytes, int]
"""A picture in the cache: its content, and how many of the same content stand before it, which count as well."""


def content_names(pictures: Iterable[VisibleRows]) -> list[Name]:
    seen: Counter[bytes] = Counter()
    found = list[Name]()
    for each in pictures:
        found.append((each.content, seen[each.content]))
        seen[each.content] += 1
    return found


@final
class MediaCrossAttentionCache(CrossAttentionCache):
    """Keys and values of pictures, at most `length` rows each, for as many pictures as sequences, and `spare` more.

    `show` says which pictures a sequence has, before its steps; a writer then puts the rows of those that are new. As
    transformers computes it, a token sees the last picture before it, with those that stand directly before that
    picture; a token before the first picture sees all rows of all pictures.

        bound.is_empty    True: no sequence of the step has a picture
        bound.present     f32 (1, tokens): 0 for tokens of sequences without a picture
        bound.after       f32 (1, tokens): 0 for these tokens, and for tokens before their first picture
    """

    _seen_before = True
    length: int
    regions: int

    def __init__(self, length: int, *, spare: int = 0) -> None:
        super().__init__(length)
        self._spare = spare

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        self.open_regions(backend, sizes, sizes.sequences + self._spare)

    @property
    def pictures(self) -> MediaCrossAttentionCache:
        return self

    def show(self, sequence: int, pictures: Sequence[VisibleRows]) -> list[tuple[VisibleRows, Ints]]:
        """Let a sequence have these pictures and no others; gives those to be written, with their cells.

        CacheFullError if there is no room, and then nothing is changed.
        """
        before = self._of(sequence)
        if wrong := next((each for each in pictures if not 0 < each.rows <= self._room), None):
            raise CacheFullError(sequence, wrong.rows, self._room)
        self._shown[sequence] = []
        regions: dict[Name, int] = {}
        for held in (before, *self._shown):
            named = zip(content_names(shown for shown, _ in held), held, strict=True)
            regions |= {name: region for name, (_, region) in named if name not in regions}
        wanted = content_names(pictures)
        kept = {regions[name] for name in wanted if name in regions}
        free = [region for region in self.free_regions() if region not in kept]
        new: list[tuple[VisibleRows, Ints]] = []
        for name, each in zip(wanted, pictures, strict=True):
            if name not in regions:
                if len(new) == len(free):
                    self._shown[sequence] = before
                    raise CacheFullError(sequence, each.rows, 0)
                regions[name] = free[len(new)]
                new.append((each, self.cells_of(regions[name], each.rows)))
        self._shown[sequence] = [(each, regions[name]) for name, each in zip(wanted, pictures, strict=True)]
        return new

    def contents(self, sequence: int) -> CacheContents:
        if self._of(sequence):
            raise BackbayError("a sequence that sees pictures gives no snapshot")
        return CacheContents()

    def restore(self, sequence: int, contents: CacheContents) -> None:
        self.check(sequence)

    def plan(self, step: Step) -> CrossAttentionPlan:
        return self.planned(step, [(run, list(self._views(run))) for run in token_runs(step)])

    def worst(self, step: Step) -> CrossAttentionPlan:
        """The step sees all regions, if a writer was made, without which there are no pictures."""
        return self.planned_whole(step) if self.storage.layers else self.planned(step, ())

    def bind(self, ctx: Context, plan: CachePlan) -> BoundMediaCrossAttentionCache:
        return BoundMediaCrossAttentionCache(self, ctx, own_plan(CrossAttentionPlan, plan))

    def _views(self, run: TokenRun) -> Iterator[PositionRun]:
        """What the tokens of a run see, in parts that see the same."""
        held = self._of(run.sequence)
        if not held:
            return
        end = run.position + run.count
        places = [shown.position for shown, _ in held]
        if run.position < places[0]:
            every = [self.range_of(region, shown.rows) for shown, region in held]
            yield PositionRun(run.position, min(end, places[0]), every, after=False)
        group = 0  # the first of the pictures that stand side by side
        for n, place in enumerate(places):
            if n and place != places[n - 1] + 1:
                group = n
            low, high = max(run.position, place), min([end, *places[n + 1 : n + 2]])
            if low < high:
                cells = [self.range_of(region, shown.visible) for shown, region in held[group : n + 1]]
                yield PositionRun(low, high, cells)


@final
class BoundMediaCrossAttentionCache(BoundCrossAttentionCache):
    _missing = "no picture in this step: a MediaCacheGraph comes first"
    is_empty: bool
    present: Tensor

    def __init__(self, cache: MediaCrossAttentionCache, ctx: Context, plan: CrossAttentionPlan) -> None:
        super().__init__(cache, ctx, plan, 1)
        self.after = self._after = self._host.zeros(DType.F32, 1, plan.step.size)
        self.fill(plan)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        raise BackbayError(f"layer {layer} sees pictures: a MediaCacheGraph stores their keys and values")


@final
class MediaCacheGraph:
    """A graph that makes the keys and values of a picture's rows, in all layers that see pictures, chunk by chunk.

    `trace` is given the context, the rows (width, n), and a function that stores a layer's keys and values.
    """

    def __init__(
        self,
        cache: MediaCrossAttentionCache,
        width: int,
        trace: Callable[[Context, Tensor, Callable[[Context, int, Tensor, Tensor], None]], None],
    ) -> None:
        self._size = min(CHUNK, cache.length)
        self._ctx = cache.storage.backend.new_context()
        try:
            host = self._ctx.input()
            self._rows = host.empty(DType.F32, width, self._size)
            self._cells = cells = host.empty(DType.I32, self._size)

            def put(ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
                cache.storage.store(ctx, layer, key, value, cells)

            self._ctx.set_batch_size(self._size)
            trace(self._ctx, self._rows, put)
            self._ctx.reserve()
        except BaseException:
            self._ctx.close()
            raise

    def write(self, rows: NDArray[np.float32], cells: Ints) -> None:
        """Store the keys and values of rows, (n, width), in cells."""
        for low in range(0, len(cells), self._size):
            part = rows[low : low + self._size]
            self._rows.from_floats(np.pad(part, ((0, self._size - len(part)), (0, 0)), mode="edge"))
            self._cells.from_ints(pad_cells(cells[low : low + self._size], self._size))
            self._ctx.compute()

    def close(self) -> None:
        self._ctx.close()
