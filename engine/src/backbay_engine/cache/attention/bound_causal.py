"""A step's part of the cache of causal attention: its plan, and its leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from backbay import BackbayError, Context, DType, Tensor

from ...steps.step import Ints
from ..cells.bookkeeping import FEW, Run
from ..cells.masks import HIDDEN, NUMPY, Mask, Rows
from ..contract import BoundCache, CachePlan, History, own_plan

if TYPE_CHECKING:
    from .causal import CausalCache


@dataclass(frozen=True)
class CausalPlan(CachePlan):
    """The cells that a step writes, and the range of cells that it sees."""

    cells: Ints
    first: int
    history: int
    runs: Sequence[Run]  # empty in a plan of `worst`


@final
class BoundCausalCache(BoundCache):
    """The leaves of a step, and the layers' tensors after its writes."""

    def __init__(self, cache: CausalCache, ctx: Context, plan: CausalPlan) -> None:
        self._cache, self._storage = cache, cache.storage
        self._first, self._history = plan.first, plan.history
        config, host, size = self._storage.config, ctx.input(), plan.step.size
        rows = self._storage.mask_rows(size)
        self._cells = host.empty(DType.I32, size)
        self._updates = (
            size <= FEW and plan.step.spans is None
        )  # rows of a few tokens, in an array that is kept
        self._rows: Rows | None = None  # made at the first step: a bound worst case needs none
        self._masks: list[tuple[Mask, Tensor]] = []  # with spans; if the step has any, also without them
        for _ in range(1 if plan.step.spans is None else 2):
            leaf = host.empty(config.mask_dtype, plan.history, rows)
            self._masks.append((Mask(cache.visibility, plan.first), leaf))
        self._written: dict[int, tuple[Tensor, Tensor]] = {}
        self._host, self._plan = host, plan
        self._by_distance: dict[str, tuple[Tensor, Callable[[Ints], Ints]]] = {}
        self.fill(plan)

    def fill(self, plan: CachePlan) -> None:
        plan = self._plan = own_plan(CausalPlan, plan)
        self._cells.from_bytes(plan.cells)
        if self._by_distance:
            distances = self._distances(plan)
            for leaf, function in self._by_distance.values():
                leaf.from_ints(function(distances))
        for n, (mask, leaf) in enumerate(self._masks if plan.runs else ()):
            if self._updates:
                rows = self._kept_rows(leaf)
                mask.fill(rows, self._cache.cells, plan.runs)
            else:
                rows = self._cache.scratch(*leaf.shape)
                mask.fill_anew(rows, self._cache.cells, plan.runs, plan.step.spans if n == 0 else None)
            leaf.from_bytes(rows)

    def by_distance(self, name: str, function: Callable[[Ints], Ints]) -> Tensor:
        """A leaf, i32 (history, tokens and padding), of `function(distances)`, which each step fills anew.

        The distance of a cell from a token is the number of positions between them; 0 where a token does not see.
        """
        if name not in self._by_distance:
            leaf = self._host.empty(DType.I32, *self._masks[0][1].shape)
            self._by_distance[name] = leaf, function
            leaf.from_ints(function(self._distances(self._plan)))
        return self._by_distance[name][0]

    def _distances(self, plan: CausalPlan) -> Ints:
        found = np.zeros(self._masks[0][1].shape[::-1], np.int32)
        for run in plan.runs:
            end = run.position + run.count
            columns = self._cache.cells.of(run.sequence, 0, end) - self._first
            held = np.arange(end - len(columns), end, dtype=np.int32)
            asking = np.arange(run.position, end, dtype=np.int32)[:, None]
            found[run.row : run.row + run.count, columns] = np.maximum(asking - held, 0)
        return found

    def _kept_rows(self, leaf: Tensor) -> Rows:
        if self._rows is None:
            self._rows = np.full(leaf.shape[::-1], HIDDEN, NUMPY[leaf.dtype])
        return self._rows

    def put(self, ctx: Context, layer: int, key: Tensor, value: Tensor) -> None:
        self._written[layer] = self._storage.store(ctx, layer, key, value, self._cells)

    def get(self, ctx: Context, layer: int, *, spans: bool = True) -> History:
        if layer not in self._storage.layers:
            raise BackbayError(f"layer {layer} has nothing in this cache: put comes first")
        written, (_, mask) = self._written.get(layer), self._masks[0 if spans else -1]
        return self._storage.history(ctx, layer, written, self._first, self._history, mask)

    def named(self) -> dict[str, Tensor]:
        found = {"cells": self._cells, "mask": self._masks[0][1]}
        for layer in self._written:
            held = self._storage.layers[layer]
            found[f"keys.{layer}"] = held.key
            if held.within is None:
                found[f"values.{layer}"] = held.value
        return found
