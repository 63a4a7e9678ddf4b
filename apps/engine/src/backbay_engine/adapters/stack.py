"""The factors of all adapters of a model, in memory: those of one matrix stacked, whichever adapters change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from backbay import Backend, Context, DType, Tensor
from backbay.internals import naming_limits

from ..arguments import AdapterMix
from ..steps.step import StepAdapters
from .adapter import Adapter, AdapterFactors, Array

BESIDE: Final = 256  # columns that factors of all adapters may have beside each other


@final
@dataclass(frozen=True)
class StackedFactors:
    """The factors of one matrix. Each adapter has `rank` of them, zeros if it has fewer.

    beside  the factors of all adapters stand beside each other, and a token's scales choose among them:
            down is (in, rank * adapters), up (rank * adapters, out); of experts, each has one such pair more
            otherwise down is (in, rank, adapters), up (rank, out, adapters), and a token's ids choose among them
    """

    down: Tensor
    up: Tensor
    rank: int
    beside: bool


@final
class AdapterStack:
    """Some adapters of a model, in the order of their places. `close` frees the memory."""

    @naming_limits("adapters")
    def __init__(self, backend: Backend, adapters: Sequence[Adapter]) -> None:
        self.adapters = tuple(adapters)
        self._places = {adapter.fingerprint: place for place, adapter in enumerate(adapters)}
        self._ctx = backend.new_context()
        try:
            names = sorted({name for adapter in adapters for name in adapter.factors})
            self.factors: Mapping[str, StackedFactors] = {
                name: self._stacked(self._home(backend, name), [each.factors.get(name) for each in adapters])
                for name in names
            }
        except BaseException:
            self._ctx.close()
            raise

    def _home(self, backend: Backend, name: str) -> Context:
        """The context that puts factors where the matrix of this name is."""
        placement = backend.placement_of(name)
        return self._ctx.input() if placement.layer is None else self._ctx.layer(placement.layer)

    def _stacked(self, ctx: Context, found: Sequence[AdapterFactors | None]) -> StackedFactors:
        own = [each for each in found if each is not None]
        rank, experts = max(each.rank for each in own), own[0].down.ndim == 3
        half = all(each.down.dtype == np.float16 for each in own)
        dtype = np.float16 if half else np.float32
        down = np.zeros((len(found), *own[0].down.shape[:-2], rank, own[0].down.shape[-1]), dtype)
        up = np.zeros((len(found), *own[0].up.shape[:-1], rank), dtype)
        for place, each in enumerate(found):
            if each is not None:
                down[place, ..., : each.rank, :] = each.down
                up[place, ..., : each.rank] = each.up
        beside = experts or rank * len(found) <= BESIDE
        if beside:  # (..., adapters * rank, in) and (..., out, adapters * rank)
            down = np.concatenate([*down], axis=-2)
            up = np.concatenate([*up], axis=-1)
        kind = DType.F16 if half else DType.F32
        return StackedFactors(_leaf(ctx, kind, down), _leaf(ctx, kind, up), rank, beside)

    def mixed(self, counts: Sequence[int], mixes: Sequence[AdapterMix]) -> StepAdapters:
        """The adapters of a step whose runs of tokens have these mixes, by fingerprint."""
        used = [[(self._places[each], scale) for each, scale in mix] for mix in mixes]
        first = next(mix[0][0] for mix in used if mix)  # read anyway
        n, most = sum(counts), max(map(len, used))
        places, scales = np.full((n, most), first, np.int32), np.zeros((n, most), np.float32)
        begin = 0
        for count, mix in zip(counts, used, strict=True):
            for number, (place, scale) in enumerate(mix):
                places[begin : begin + count, number] = place
                scales[begin : begin + count, number] = scale
            begin += count
        return StepAdapters(places, scales)

    def worst(self, tokens: int) -> StepAdapters:
        """The adapters of a step that takes the most memory: all of them, in turns."""
        places = np.arange(tokens, dtype=np.int32)[:, None] % len(self.adapters)
        return StepAdapters(places, np.ones((tokens, 1), np.float32))

    def close(self) -> None:
        self._ctx.close()


def _leaf(ctx: Context, dtype: DType, numbers: Array) -> Tensor:
    leaf = ctx.empty(dtype, *numbers.shape[::-1])
    return leaf.from_floats(numbers)
