"""Lives of caches of keys and values, and layers of attention over a cache, without a model around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor
from backbay_conformance.plugin import (
    Cell,
    ChoiceSource,
    Fault,
    Lab,
    Machine,
    Number,
    attend,
    attention_cost,
    number,
    require_close,
    stored,
)

from ..cache import Cache, CachePlan, CacheSizes
from ..cache.cells.rotation import ROTATED, rotation_matrix

Array = NDArray[Any]
HEAD, SCALE = 32, 32**-0.5
SPANNED = 0  # the layer in which the tokens of a span see each other
SEQUENCES, CAPACITY, BATCH = 3, 40, 12


class AttentionMachine(Machine):
    """The machine of a cache of keys and values; float64 recomputes every token's attention."""

    cache: Cache
    traced: dict[Any, Any]

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.backend = lab.fresh()
        self.ends, self.traced = [0] * SEQUENCES, {}

    def open(self, cache: Cache, dtype: DType) -> None:
        self.dtype, self.cost = dtype, attention_cost(self.backend, dtype, dtype)
        self.rotation = number(rotation_matrix(HEAD), self.cost)
        cache.open(self.backend, CacheSizes(SEQUENCES, CAPACITY, BATCH, dtype))

    def close(self) -> None:
        for sequence in range(SEQUENCES):
            self.cache.remove(sequence, 0)
        used = self.cache.used
        self.close_steps()
        self.cache.close()
        self.backend.close()
        if used:
            raise Fault("cache", f"{used} cells are in use after all sequences were removed")

    def close_steps(self) -> None:
        for step in self.traced.values():
            step.ctx.close()
        self.traced.clear()

    def some(self, choose: ChoiceSource) -> list[int]:
        """One to all sequences."""
        first, count = choose.below(SEQUENCES), 1 + choose.below(SEQUENCES)
        return [(first + n) % SEQUENCES for n in range(count)]

    def cell(self, sequence: int, position: int, key: Number, value: Number) -> Cell:
        return Cell(position, {sequence}, self.stored(key), stored(value, self.dtype))

    def stored(self, key: Number) -> Number:
        """Keys as the cache stores them, (heads, HEAD)."""
        return stored(self.rotated(key), self.dtype)

    def rotated(self, x: Number) -> Number:
        """Keys or queries in the cache's rotation, or rotated ones as they were."""
        return x.einsum("hd,de->he", self.rotation, HEAD) if self.dtype in ROTATED else x

    def compare(self, got: Array, query: Number, cells: list[Cell], what: str) -> None:
        expected = attend(self.rotated(query), cells, SCALE)
        require_close(got.reshape(expected.shape), expected, what)


@dataclass(frozen=True)
class AttentionShape:
    """The sizes of a layer's attention, and its rotary embedding."""

    kv_heads: int
    heads: int
    mode: Literal["normal", "neox"]
    dim: int
    base: float

    def turn(self, ctx: Context, x: Tensor, positions: Tensor) -> Tensor:
        return x.rope(ctx, positions, self.dim, self.base, mode=self.mode)


class TracedLayers:
    """Layers of attention over a cache, traced as a model traces them: each layer puts, gets and attends."""

    def __init__(self, machine: AttentionMachine, shapes: Sequence[AttentionShape], plan: CachePlan) -> None:
        size = plan.step.size
        self.ctx = machine.backend.new_context()
        self.bound, host = machine.cache.bind(self.ctx, plan), self.ctx.input()
        self.positions = host.empty(DType.I32, size)
        self.inputs: list[list[Tensor]] = []
        self.results: list[Tensor] = []
        for i, shape in enumerate(shapes):
            ctx = self.ctx.layer(i)
            heads = (shape.heads, shape.kv_heads, shape.kv_heads)
            query, key, value = made = [host.empty(DType.F32, HEAD, n, size) for n in heads]
            self.bound.put(ctx, i, shape.turn(ctx, key, self.positions), value)
            seen = self.bound.get(ctx, i, spans=i == SPANNED)
            self.inputs.append(made)
            self.results.append(seen.attend(ctx, shape.turn(ctx, query, self.positions), SCALE))

    def run(self, positions: Array, data: list[list[Array]]) -> list[Array]:
        """The results of each layer, (tokens, heads, HEAD)."""
        self.positions.from_ints(positions)
        for leaves, arrays in zip(self.inputs, data, strict=True):
            for leaf, array in zip(leaves, arrays, strict=True):
                leaf.from_floats(array)
        self.ctx.compute(*self.results)
        return [np.asarray(result.numpy(), np.float64) for result in self.results]
