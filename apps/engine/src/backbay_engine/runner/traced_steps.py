"""The step cache: a few traced contexts, one for each shape of step, that run the steps of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor
from backbay.plugin import Cancel

from ..adapters.stack import AdapterStack
from ..cache.contract import BoundCache, Cache, CachePlan
from ..models.adapters import TracedAdapters
from ..models.batch import Batch
from ..models.contract import Model
from ..models.nn.adaptation import adaptations_of
from ..steps.context_cache import ContextCache
from ..steps.step import Floats, Step


@dataclass(frozen=True, slots=True)
class TracedStep:
    ctx: Context
    batch: Batch
    bound: BoundCache | None
    result: Tensor
    rows: tuple[Tensor, ...]  # (width, tokens), if the model keeps them

    def close(self) -> None:
        self.ctx.close()


class StepCache:
    """Runs the steps of a model. A step of a recently used shape reuses its context: nothing is traced.

    The least recently used context is dropped beyond `limit` contexts, or beyond the reserved memory. `stack` has the
    adapters that steps may ask for, `rows` the vectors that the model keeps of the last step, (tokens, width).

    Of steps with up to `lends` outputs, the results are lent until the next step: the system would clear new memory for each.
    """

    def __init__(self, model: Model, cache: Cache | None, limit: int = 16) -> None:
        self.model, self.cache, self.limit, self.lends = model, cache, limit, 0
        self._kept: ContextCache[TracedStep] = ContextCache(model.backend, limit)
        self._grown = False  # since the memory was last checked
        self.stack: AdapterStack | None = None
        self.rows: Floats = np.zeros((0, 0), np.float32)
        self._results: Floats = np.zeros(0, np.float32)  # lent
        self._steps: Sequence[Step] = ()  # the largest
        self._steps_with_rows: Sequence[Step] = ()  # those that the first step with rows reserves
        self._changed = set[str]()  # the matrices that adapters changed in a trace

    def run(self, step: Step, cancel: Cancel | None = None) -> NDArray[Any]:
        """The results of a step, (outputs, n). If the step fails, the cache forgets it."""
        if step.rows is not None and self._steps_with_rows:
            self._reserve_rows()
        plan = None if self.cache is None else self.cache.plan(step)
        try:
            return self._kept.run(partial(self._compute, step, plan, cancel))
        except BaseException:
            if self.cache is not None:
                self.cache.rollback(step)
            raise

    def reserve(self, steps: Sequence[Step]) -> None:
        """Allocate the memory of the largest steps and of the cache; later steps stay within it."""
        nodes, self._steps = self._reserve(steps), steps
        if self.cache is not None:
            self.cache.reserve()
        self._kept.reserve(nodes)

    def reserve_later(self, steps: Sequence[Step]) -> None:
        """Allocate the memory of the largest steps with rows when the first step with rows comes: most models get none."""
        self._steps_with_rows = steps

    def _reserve_rows(self) -> None:
        """Allocate it now; if that fails, the largest steps without rows keep theirs."""
        steps, backend = [*self._steps, *self._steps_with_rows], self.model.backend
        try:
            self._kept.reserve(self._reserve(self._adapted_too(steps)))
        except BaseException as error:
            self.close()
            if isinstance(error, MemoryError):
                backend.refuse_memory(error)
            raise
        self._steps, self._steps_with_rows = steps, ()

    def _adapted_too(self, steps: Sequence[Step]) -> list[Step]:
        """The steps without the adapters of the stack, and with them."""
        stack = self.stack
        adapted = [] if stack is None else [replace(step, adapters=stack.worst(step.size)) for step in steps]
        return [*steps, *adapted]

    def adapt(self, stack: AdapterStack | None) -> list[str]:
        """Let steps have other adapters, and reserve the largest with them; gives the matrices that no step changed.

        All contexts are dropped, as those with adapters use the former ones.
        """
        self.close()
        self.stack = stack
        self._changed.clear()
        self._kept.reserve(self._reserve(self._adapted_too(self._steps)))
        return [] if stack is None else [name for name in stack.factors if name not in self._changed]

    def keep_within_now(self) -> None:
        """Keep within what is taken now; called once former adapters are gone."""
        self._kept.reserve(0)

    def _reserve(self, steps: Sequence[Step]) -> int:
        """Allocate the memory of steps; gives the most nodes of one."""
        nodes = 0
        for step in steps:
            plan = None if self.cache is None else self.cache.worst(step)
            ctx = self._find(step, plan).ctx
            ctx.reserve()
            nodes = max(nodes, ctx.counters.traced_nodes)
        return nodes

    def _compute(self, step: Step, plan: CachePlan | None, cancel: Cancel | None) -> NDArray[Any]:
        traced = self._find(step, plan)
        if self._grown:
            traced.ctx.reserve()  # books the memory, which the step then fills
            self._kept.keep_within()
        traced.ctx.compute(traced.result, *traced.rows, cancel=cancel)
        if self._grown:  # a first run may take more
            self._kept.keep_within()
            self._grown = False
        for rows in traced.rows:
            self.rows = rows.numpy()
        return self._read(traced.result)

    def _read(self, result: Tensor) -> NDArray[Any]:
        shape, count = result.shape[::-1], prod(result.shape)
        if shape[0] > self.lends or result.dtype is not DType.F32:
            return result.numpy()
        if count > len(self._results):
            self._results = np.empty(count, np.float32)
        return result.numpy(self._results[:count].reshape(shape))

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
        self._kept.close()

    def _find(self, step: Step, plan: CachePlan | None) -> TracedStep:
        room = step.rows.room if step.rows is not None else 0
        most = step.adapters and step.adapters.most
        key = (step.size, len(step.outputs), room, plan and plan.key, self.model.key(step), most)
        traced = self._kept.get(key)
        if traced is None:
            traced = self._kept.add(key, partial(self._make, step, plan))
            self._grown = True
            return traced
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
            with self._adapted(ctx, batch, step):
                result = self.model.forward(ctx, batch)
            rows = (batch.taps["output_norm"],) if self.model.keeps_rows else ()
            ctx.forward(result, *rows)
        except BaseException:
            ctx.close()
            raise
        return TracedStep(ctx, batch, bound, result, rows)

    @contextmanager
    def _adapted(self, ctx: Context, batch: Batch, step: Step) -> Iterator[None]:
        """While this lasts, what is traced has the adapters of the step."""
        if step.adapters is None:
            yield
            return
        assert self.stack is not None  # which has the step's adapters
        adapters = TracedAdapters(batch, self.stack, step.adapters, len(step.outputs))
        with adaptations_of(self.model.backend).bound(ctx, adapters):
            yield
        self._changed |= adapters.changes
