"""The step cache: a few traced contexts, one for each shape of step, that run the steps of a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor
from backbay.plugin import Entry

from ..cache.contract import BoundCache, Cache, CachePlan
from ..models.batch import Batch
from ..models.contract import Model
from ..steps.step import Step

NODE = 768  # bytes that core and a backend take for a traced node beside its data, measured


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A context with the traced forward pass of one shape of step."""

    ctx: Context
    batch: Batch
    bound: BoundCache | None
    result: Tensor


class StepCache:
    """Runs the steps of a model. A step of a recently used shape reuses its context: nothing is traced.

    The least recently used context is dropped beyond `limit` contexts, or beyond the reserved memory.
    """

    def __init__(self, model: Model, cache: Cache | None, limit: int = 16) -> None:
        self.model, self.cache, self.limit = model, cache, limit
        self._traced: OrderedDict[Hashable, TracedStep] = OrderedDict()
        self._reserved: int | None = None  # bytes
        self._grown = False  # since the memory was last checked

    def run(self, step: Step, cancel: Event | None = None) -> NDArray[Any]:
        """The results of a step, (outputs, n). If the step fails, the cache forgets it."""
        plan = None if self.cache is None else self.cache.plan(step)
        try:
            return self._computed(step, plan, cancel)
        except BaseException:
            if self.cache is not None:
                self.cache.rollback(step)
            raise

    def reserve(self, steps: Sequence[Step]) -> None:
        """Allocate the memory of the largest steps and of the cache; later steps stay within it."""
        nodes = 0
        for step in steps:
            plan = None if self.cache is None else self.cache.worst(step)
            ctx = self._find(step, plan).ctx
            ctx.reserve()
            nodes = max(nodes, ctx.counters.traced_nodes)
        ledger = self.model.backend.ledger
        ledger.take(Entry(ledger.devices[0][0], "host"), self.limit * nodes * NODE, lambda: None)
        if self.cache is not None:
            self.cache.reserve()
        self._reserved = self._taken()

    def _computed(self, step: Step, plan: CachePlan | None, cancel: Event | None) -> NDArray[Any]:
        """The results of a step; if memory is short, drop other contexts: the largest step fits alone."""
        spare = len(self._traced)
        while True:
            try:
                return self._compute(step, plan, cancel)
            except MemoryError as error:
                if not spare:
                    self.model.backend.refuse_memory(error)
                spare -= 1
                self._drop_oldest()

    def _compute(self, step: Step, plan: CachePlan | None, cancel: Event | None) -> NDArray[Any]:
        traced = self._find(step, plan)
        if self._grown:
            traced.ctx.reserve()  # books the memory, which the step then fills
            self._keep_within()
        traced.ctx.compute(traced.result, cancel=cancel)
        if self._grown:  # a first run may take more
            self._keep_within()
            self._grown = False
        return traced.result.numpy()

    def _keep_within(self) -> None:
        """Drop contexts beyond the reserved memory."""
        while self._reserved is not None and len(self._traced) > 1 and self._taken() > self._reserved:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._traced:
            self._traced.popitem(last=False)[1].ctx.close()

    def _taken(self) -> int:
        return self.model.backend.memory().total()

    @contextmanager
    def traced(self, step: Step) -> Iterator[TracedStep]:
        """The forward pass of a step in a context of its own, to look into; cache and contexts stay as they were."""
        plan = None if self.cache is None else self.cache.plan(step)
        try:
            traced = self._make(step, plan)
            with traced.ctx:
                yield traced
        finally:
            if self.cache is not None:
                self.cache.rollback(step)

    def tapped(self, step: Step) -> dict[str, NDArray[Any]]:
        """The values of a step's taps, and its result."""
        with self.traced(step) as traced:
            named = traced.result in traced.batch.taps.values()
            wanted = traced.batch.taps if named else {**traced.batch.taps, "result": traced.result}
            traced.ctx.compute(*wanted.values())
            return {name: x.numpy() for name, x in wanted.items()}

    def first_broken(self, step: Step) -> str | None:
        """The name of a step's first tap with NaN or infinities; frees all contexts, to have memory for the search."""
        self.close()
        return next((name for name, x in self.tapped(step).items() if not np.isfinite(x).all()), None)

    def close(self) -> None:
        """Free all contexts."""
        while self._traced:
            self._drop_oldest()

    def _find(self, step: Step, plan: CachePlan | None) -> TracedStep:
        room = step.rows.room if step.rows is not None else 0
        key = (step.size, len(step.outputs), room, plan and plan.key, self.model.key(step))
        traced = self._traced.get(key)
        if traced is None:
            while len(self._traced) >= self.limit:
                self._drop_oldest()
            traced = self._traced[key] = self._make(step, plan)
            self._grown = True
            return traced
        self._traced.move_to_end(key)
        traced.batch.fill(step)
        if traced.bound is not None and plan is not None:
            traced.bound.fill(plan)
        return traced

    def _make(self, step: Step, plan: CachePlan | None) -> TracedStep:
        ctx = self.model.backend.new_context()
        try:
            ctx.set_batch_size(max(1, step.size))
            bound = self.cache.bind(ctx, plan) if self.cache is not None and plan is not None else None
            batch = Batch(ctx, step, bound)
            result = self.model.forward(ctx, batch)
            ctx.forward(result)
        except BaseException:
            ctx.close()
            raise
        return TracedStep(ctx, batch, bound, result)
