"""The layered cache: several caches as one, each for some of the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from backbay import Backend, Context, Tensor

from ..steps.step import Step
from .attention.pictures import PictureCache
from .cells.contents import Contents, joined
from .contract import BoundCache, Cache, CachePlan, CacheSizes, History, own_plan


@dataclass(frozen=True)
class LayeredPlan(CachePlan):
    """A plan of each cache."""

    plans: Sequence[CachePlan]


@final
class LayeredCache(Cache):
    """Several caches for a model whose layers differ; `kind` gives the index of a layer's cache.

    If one cache refuses, all stay unchanged.
    """

    def __init__(self, caches: Sequence[Cache], kind: Callable[[int], int]) -> None:
        if not caches:
            raise ValueError("a layered cache needs at least one cache")
        self.caches, self.kind = tuple(caches), kind

    @property
    def is_uniform(self) -> bool:
        return any(cache.is_uniform for cache in self.caches)

    @property
    def pictures(self) -> PictureCache | None:
        return next((cache.pictures for cache in self.caches if cache.pictures is not None), None)

    @property
    def used(self) -> int:
        return sum(cache.used for cache in self.caches)

    def open(self, backend: Backend, sizes: CacheSizes) -> None:
        opened: list[Cache] = []
        try:
            for cache in self.caches:
                cache.open(backend, sizes)
                opened.append(cache)
        except BaseException:
            for cache in opened:
                cache.close()
            raise

    def close(self) -> None:
        for cache in self.caches:
            cache.close()

    def reserve(self) -> None:
        for cache in self.caches:
            cache.reserve()

    @property
    def host_nbytes(self) -> int:
        return sum(cache.host_nbytes for cache in self.caches)

    def plan(self, step: Step) -> LayeredPlan:
        plans: list[CachePlan] = []
        for cache in self.caches:
            try:
                plans.append(cache.plan(step))
            except BaseException:
                for earlier in self.caches[: len(plans)]:
                    earlier.rollback(step)
                raise
        return _joined(step, plans)

    def worst(self, step: Step) -> LayeredPlan:
        return _joined(step, [cache.worst(step) for cache in self.caches])

    def bind(self, ctx: Context, plan: CachePlan) -> BoundLayeredCache:
        plans = own_plan(LayeredPlan, plan).plans
        return BoundLayeredCache(
            [cache.bind(ctx, own) for cache, own in zip(self.caches, plans, strict=True)], self.kind
        )

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for cache in self.caches:
            cache.copy_prefix(source, target, length)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(cache.can_resume(sequence, position) for cache in self.caches)

    def last_resumable(self, sequence: int, position: int) -> int:
        while position and not self.can_resume(sequence, position):
            least = min(cache.last_resumable(sequence, position) for cache in self.caches)
            position = min(least, position - 1)
        return position

    def removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        removals = [cache.removal(sequence, begin, end) for cache in self.caches]

        def remove() -> None:
            try:
                for each in removals:
                    each()
            except BaseException:
                for cache in self.caches:
                    cache.remove(sequence, begin)
                raise

        return remove

    def contents(self, sequence: int) -> Contents:
        return joined((str(n), cache.contents(sequence)) for n, cache in enumerate(self.caches))

    def restore(self, sequence: int, contents: Contents) -> None:
        try:
            for n, cache in enumerate(self.caches):
                cache.restore(sequence, contents.part(str(n)))
        except BaseException:
            self.remove(sequence, 0)
            raise

    def wipe(self, sequence: int) -> None:
        for cache in self.caches:
            cache.wipe(sequence)

    def rollback(self, step: Step) -> None:
        for cache in self.caches:
            cache.rollback(step)


@final
class BoundLayeredCache(BoundCache):
    """Each cache's part of a traced context."""

    def __init__(self, bounds: Sequence[BoundCache], kind: Callable[[int], int]) -> None:
        self.bounds, self._kind = tuple(bounds), kind

    def of(self, layer: int) -> BoundCache:
        """The bound cache of a layer."""
        return self.bounds[self._kind(layer)]

    def fill(self, plan: CachePlan) -> None:
        for bound, own in zip(self.bounds, own_plan(LayeredPlan, plan).plans, strict=True):
            bound.fill(own)

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        self.of(layer).put(ctx, layer, key, value)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> History:
        return self.of(layer).get(ctx, layer, spans=spans)

    def named(self) -> dict[str, Tensor]:
        return {
            f"cache.{n}.{name}": tensor
            for n, bound in enumerate(self.bounds)
            for name, tensor in bound.named().items()
        }


def _joined(step: Step, plans: Sequence[CachePlan]) -> LayeredPlan:
    return LayeredPlan(step, tuple([plan.key for plan in plans]), plans)
