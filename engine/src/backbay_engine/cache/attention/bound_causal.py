"""A step's part of the cache of causal attention: its plan, and its leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from backbay import Context, Tensor

from ...steps.leaves import Leaves
from ...steps.step import Ints
from ..cells.bookkeeping import FEW, Run
from ..cells.masks import HIDDEN, NUMPY, Mask, Rows
from ..cells.storage import BoundCellCache
from ..contract import CachePlan, own_plan

if TYPE_CHECKING:
    from .causal import CausalCache


@dataclass(frozen=True)
class CausalPlan(CachePlan):
    cells: Ints
    first: int
    history: int
    runs: Sequence[Run]  # empty in a plan of `worst`


@final
class BoundCausalCache(BoundCellCache):
    _missing = "nothing in this cache: put comes first"
    _masks: list[Tensor]

    def __init__(self, cache: CausalCache, ctx: Context, plan: CausalPlan) -> None:
        spans, size = plan.step.spans is not None, plan.step.size
        super().__init__(cache.storage, ctx, plan.first, plan.history, size)
        self._cache = cache
        self._updates = size <= FEW and not spans  # rows of a few tokens, in an array that is kept
        self._rows: Rows | None = None  # made at the first step: a bound worst case needs none
        dtype, rows = self._storage.config.mask_dtype, self._storage.mask_rows(size)
        self._masks = [self._host.empty(dtype, plan.history, rows) for _ in range(1 + spans)]
        self._makers = [Mask(cache.visibility, plan.first) for _ in self._masks]
        self._by_distance = Leaves(ctx, plan, "the plan's key")
        self.fill(plan)

    def fill(self, plan: CachePlan) -> None:
        plan = own_plan(CausalPlan, plan)
        self._cells.from_bytes(plan.cells)
        self._by_distance.fill(plan)
        for n, (mask, leaf) in enumerate(zip(self._makers, self._masks, strict=True) if plan.runs else ()):
            if self._updates:
                if self._rows is None:
                    self._rows = np.full(leaf.shape[::-1], HIDDEN, NUMPY[leaf.dtype])
                rows = self._rows
                mask.fill(rows, self._cache.cells, plan.runs)
            else:
                rows = self._cache.scratch(*leaf.shape)
                mask.fill_anew(rows, self._cache.cells, plan.runs, plan.step.spans if n == 0 else None)
            leaf.from_bytes(rows)

    def by_distance(self, name: str, function: Callable[[Ints], Ints]) -> Tensor:
        """A leaf, i32 (history, tokens and padding), of `function(distances)`, which each step fills anew.

        The distance of a cell from a token is the number of positions between them; 0 where a token does not see.
        """
        return self._by_distance.leaf(name, lambda plan: function(self._distances(plan)))

    def _distances(self, plan: CausalPlan) -> Ints:
        found = np.zeros(self._masks[0].shape[::-1], np.int32)
        for run in plan.runs:
            end = run.position + run.count
            columns = self._cache.cells.of(run.sequence, 0, end) - self._first
            held = np.arange(end - len(columns), end, dtype=np.int32)
            asking = np.arange(run.position, end, dtype=np.int32)[:, None]
            found[run.row : run.row + run.count, columns] = np.maximum(asking - held, 0)
        return found

    def named(self) -> dict[str, Tensor]:
        found = {"cells": self._cells, "mask": self._masks[0]}
        for layer in self._written:
            held = self._storage.layers[layer]
            found[f"keys.{layer}"] = held.key
            if held.within is None:
                found[f"values.{layer}"] = held.value
        return found
