"""The cache of pictures that text attends to: several for each sequence, each written once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Backend, CacheFullError, Context, DType, Tensor

from ...steps.step import Ints, Step
from ..cells.bookkeeping import Run, runs_of
from ..cells.cell_cache import CellCache
from ..cells.contents import Contents
from ..cells.masks import HIDDEN, NUMPY, SEEN
from ..cells.storage import filled, rounded_up
from ..contract import BoundCache, CachePlan, CacheSizes, History, own_plan

CHUNK = 1024  # rows that one run of the writer takes


@dataclass(frozen=True)
class Shown:
    """A picture of a sequence: its rows, and the position of the token from which on it is seen.

    visible  the first rows, which tokens after the picture see; the others are padding
    """

    content: bytes
    position: int
    rows: int
    visible: int


Name: TypeAlias = tuple[bytes, int]
"""A picture in the cache: its content, and how many of the same content stand before it, which count as well."""


def names(pictures: Iterable[Shown]) -> list[Name]:
    """The names of a sequence's pictures."""
    seen: Counter[bytes] = Counter()
    found = list[Name]()
    for each in pictures:
        found.append((each.content, seen[each.content]))
        seen[each.content] += 1
    return found


@dataclass(frozen=True)
class View:
    """Consecutive positions that see the same cells."""

    begin: int
    end: int
    cells: Sequence[tuple[int, int]]
    after: bool  # after the first picture


@dataclass(frozen=True)
class PicturePlan(CachePlan):
    """The range of cells that a step sees, and what each of its runs sees."""

    first: int
    history: int
    seen: Sequence[tuple[Run, Sequence[View]]]


@final
class PictureCache(CellCache):
    """Keys and values of pictures, at most `length` rows each, for as many pictures as sequences, and `spare` more.

    `show` says which pictures a sequence has, before its steps; a writer then puts the rows of those that are new. As
    transformers computes it, a token sees the last picture before it, with those that stand directly before that
    picture; a token before the first picture sees all rows of all pictures.

        bound.is_empty    True: no sequence of the step has a picture
        bound.present     f32 (1, tokens): 0 for tokens of sequences without a picture
        bound.after       f32 (1, tokens): 0 for these tokens, and for tokens before their first picture
    """

    def __init__(self, length: int, *, spare: int = 0) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        self.length, self._spare = length, spare

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        padding = backend.cache_config().cache_padding
        self._padding, self._room = padding, rounded_up(self.length, padding)
        self.regions = sizes.sequences + self._spare
        self.open_store(backend, sizes, self.regions * self._room)
        self._shown: list[list[tuple[Shown, int]]] = [
            [] for _ in range(sizes.sequences)
        ]  # with their regions

    @property
    def pictures(self) -> PictureCache:
        return self

    @property
    def used(self) -> int:
        if not self.is_open:
            return 0
        return sum({region: shown.rows for held in self._shown for shown, region in held}.values())

    def shown(self, sequence: int) -> list[Shown]:
        """The pictures of a sequence."""
        return [shown for shown, _ in self._held(sequence)]

    def show(self, sequence: int, pictures: Sequence[Shown]) -> list[tuple[Shown, Ints]]:
        """Let a sequence have these pictures and no others; gives those to be written, with their cells.

        CacheFullError if there is no room, and then nothing is changed.
        """
        before = self._held(sequence)
        if wrong := next((each for each in pictures if not 0 < each.rows <= self._room), None):
            raise CacheFullError(sequence, wrong.rows, self._room)
        self._shown[sequence] = []
        regions: dict[Name, int] = {}
        for held in (before, *self._shown):
            named = zip(names(shown for shown, _ in held), held, strict=True)
            regions |= {name: region for name, (_, region) in named if name not in regions}
        wanted = names(pictures)
        taken = {region for held in self._shown for _, region in held}
        taken |= {regions[name] for name in wanted if name in regions}
        free = [region for region in range(self.regions) if region not in taken]
        new: list[tuple[Shown, Ints]] = []
        for name, each in zip(wanted, pictures, strict=True):
            if name not in regions:
                if len(new) == len(free):
                    self._shown[sequence] = before
                    raise CacheFullError(sequence, each.rows, 0)
                regions[name] = low = free[len(new)]
                cells = np.arange(low * self._room, low * self._room + each.rows, dtype=np.int32)
                new.append((each, cells))
        self._shown[sequence] = [(each, regions[name]) for name, each in zip(wanted, pictures, strict=True)]
        return new

    def _held(self, sequence: int) -> list[tuple[Shown, int]]:
        self.check_open()
        if not 0 <= sequence < len(self._shown):
            raise BackbayError(f"sequence must be in [0, {len(self._shown)}), got {sequence}")
        return self._shown[sequence]

    def contents(self, sequence: int) -> Contents:
        if self._held(sequence):
            raise BackbayError("a sequence that sees pictures gives no snapshot")
        return Contents()

    def restore(self, sequence: int, contents: Contents) -> None:
        self._held(sequence)

    # -- steps -------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> PicturePlan:
        runs = runs_of(step)
        seen = [(run, list(self._views(run))) for run in runs]
        cells = [limits for _, views in seen for view in views for limits in view.cells]
        if not cells:
            return PicturePlan(step, (0, 0), 0, 0, seen)
        first = min(low for low, _ in cells)
        history = rounded_up(max(high for _, high in cells) - first, self._padding)
        return PicturePlan(step, (first, history), first, history, seen)

    def worst(self, step: Step) -> PicturePlan:
        """The step sees all regions, if a writer was made, without which there are no pictures."""
        if not self.storage.layers:
            return PicturePlan(step, (0, 0), 0, 0, ())
        return PicturePlan(step, (0, self.storage.cells), 0, self.storage.cells, ())

    def bind(self, ctx: Context, plan: CachePlan) -> BoundPictureCache:
        return BoundPictureCache(self, ctx, own_plan(PicturePlan, plan))

    def _views(self, run: Run) -> Iterator[View]:
        """What the tokens of a run see, in parts that see the same."""
        held = self._held(run.sequence)
        if not held:
            return
        end = run.position + run.count
        places = [shown.position for shown, _ in held]
        if run.position < places[0]:
            every = [(region * self._room, region * self._room + shown.rows) for shown, region in held]
            yield View(run.position, min(end, places[0]), every, after=False)
        group = 0  # the first of the pictures that stand side by side
        for n, place in enumerate(places):
            if n and place != places[n - 1] + 1:
                group = n
            low, high = max(run.position, place), min([end, *places[n + 1 : n + 2]])
            if low < high:
                seen = held[group : n + 1]
                cells = [(region * self._room, region * self._room + shown.visible) for shown, region in seen]
                yield View(low, high, cells, after=True)

    # -- sequences -------------------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        held = self._held(source)
        self._held(target)
        self._shown[target] = list(held) if length else []

    def can_resume(self, sequence: int, position: int) -> bool:
        self._held(sequence)
        return position >= 0

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        """Without `end`, pictures go only if nothing is left: what is before them may have seen them."""
        self._held(sequence)

        def remove() -> None:
            held = self._held(sequence)
            if end is None:
                self._shown[sequence] = held if begin > 0 else []
                return
            self._shown[sequence] = [
                (shown if shown.position < begin else _moved(shown, end - begin), region)
                for shown, region in held
                if not begin <= shown.position < end
            ]

        return remove

    def wipe(self, sequence: int) -> None:
        own = {region for _, region in self._held(sequence)}
        others = {region for n, held in enumerate(self._shown) if n != sequence for _, region in held}
        for region in own - others:
            low = region * self._room
            self.storage.wipe(np.arange(low, low + self._room, dtype=np.int32))
        self.remove(sequence, 0)


def _moved(shown: Shown, gap: int) -> Shown:
    return replace(shown, position=shown.position - gap)


@final
class BoundPictureCache(BoundCache):
    """The leaves of a step that sees pictures."""

    def __init__(self, cache: PictureCache, ctx: Context, plan: PicturePlan) -> None:
        self._storage, self._first, self._history = cache.storage, plan.first, plan.history
        self.is_empty = plan.history == 0
        config, host, size = self._storage.config, ctx.input(), plan.step.size
        rows = self._storage.mask_rows(size)
        self._shape, self._kind = (rows, plan.history), NUMPY[config.mask_dtype]
        if not self.is_empty:
            self._mask = host.empty(config.mask_dtype, plan.history, rows)
            self.present, self.after = (host.empty(DType.F32, 1, size) for _ in range(2))
        self.fill(plan)

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(PicturePlan, plan)
        if self.is_empty or not plan.seen:
            return
        rows = np.full(self._shape, HIDDEN, self._kind)
        present, after = (np.zeros(plan.step.size, np.float32) for _ in range(2))
        for run, views in plan.seen:
            block = rows[run.row : run.row + run.count]
            if not views:  # a token sees the first cell: softmax of a fully masked row is NaN
                block[:, 0] = SEEN
            for view in views:
                part = slice(view.begin - run.position, view.end - run.position)
                for low, high in view.cells:
                    block[part, low - self._first : high - self._first] = SEEN
                present[run.row : run.row + run.count][part] = 1
                after[run.row : run.row + run.count][part] = view.after
        self.present.from_floats(present)
        self.after.from_floats(after)
        self._mask.from_bytes(rows)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        raise BackbayError(f"layer {layer} sees pictures: a PictureWriter stores their keys and values")

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> History:
        held = self._storage.layers.get(layer)
        if held is None or self.is_empty:
            raise BackbayError(f"layer {layer} has no picture in this step: a PictureWriter comes first")
        return History(
            self._storage.keys(ctx, held, held.key, self._first, self._history),
            self._storage.values(ctx, held, held.value, self._first, self._history),
            self._mask,
        )


@final
class PictureWriter:
    """A graph that makes the keys and values of a picture's rows, in all layers that see pictures, chunk by chunk.

    `trace` is given the context, the rows (width, n), and a function that stores a layer's keys and values.
    """

    def __init__(
        self,
        cache: PictureCache,
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
            self._cells.from_ints(filled(cells[low : low + self._size], self._size))
            self._ctx.compute()

    def close(self) -> None:
        self._ctx.close()
