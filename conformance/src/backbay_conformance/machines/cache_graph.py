"""A cache in a backend's memory, and the graphs that store, read and move its cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from backbay import Backend, Context, DType, Tensor

from ..numbers.encoding import Array


@dataclass(frozen=True)
class CacheSettings:
    head: int
    heads: int
    kv_heads: int
    capacity: int
    key_type: DType
    value_type: DType
    mode: Literal["normal", "neox"]
    dim: int
    base: float

    @property
    def row(self) -> int:
        return self.head * self.kv_heads

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


class KeyValueCache:
    """Leaves for keys and values in a context of their own, and a kept context for each shape of a step."""

    def __init__(self, backend: Backend, layout: CacheSettings) -> None:
        self.backend, self.layout = backend, layout
        self.config = backend.cache_config()
        self.ctx = backend.new_context()
        at, shape = self.ctx.layer(0), (layout.row, layout.capacity)
        self.key = at.zeros(layout.key_type, *shape, row_axis=1)
        if self.config.permuted_v:
            self.value = at.zeros(layout.value_type, layout.capacity, layout.row, row_axis=0)
        else:
            self.value = at.zeros(layout.value_type, *shape, row_axis=1)
        self.steps: dict[tuple[int, int], CacheGraph] = {}

    def step(self, tokens: int, history: int) -> CacheGraph:
        """The kept step of a shape; made at its first use."""
        if (tokens, history) not in self.steps:
            self.steps[tokens, history] = CacheGraph(self, tokens, history)
        return self.steps[tokens, history]

    def forget_steps(self) -> None:
        for step in self.steps.values():
            step.ctx.close()
        self.steps.clear()

    def close(self) -> None:
        self.forget_steps()
        self.ctx.close()

    # -- views -------------------------------------------------------------------------------------------

    def keys(self, ctx: Context, first: int, count: int) -> Tensor:
        """(row, count): keys of `count` cells from cell `first` on."""
        return self.key.view(ctx, first * self.key.stride(1), (self.layout.row, count), (self.key.stride(1),))

    def values(self, ctx: Context, first: int, count: int) -> Tensor:
        """Values of `count` cells from cell `first` on, in the stored layout."""
        size = (self.layout.row, count)
        if not self.config.permuted_v:
            return self.value.view(ctx, first * self.value.stride(1), size, (self.value.stride(1),))
        return self.value.view(ctx, first * self.value.stride(0), size[::-1], (self.value.stride(1),))

    def heads_of_keys(self, ctx: Context, history: int) -> Tensor:
        """(head, kv_heads, history): keys from cell 0 on."""
        one = self.key.dtype.row_size(self.layout.head)
        shape = (self.layout.head, self.layout.kv_heads, history)
        return self.key.view(ctx, 0, shape, (one, self.key.stride(1)))

    def heads_of_values(self, ctx: Context, history: int) -> Tensor:
        """Values from cell 0 on: (head, kv_heads, history), or (history, head, kv_heads) if permuted."""
        head, kv_heads = self.layout.head, self.layout.kv_heads
        if self.config.permuted_v:
            step = self.value.stride(1)
            return self.value.view(ctx, 0, (history, head, kv_heads), (step, step * head))
        one = self.value.dtype.row_size(head)
        return self.value.view(ctx, 0, (head, kv_heads, history), (one, self.value.stride(1)))

    # -- maintenance -------------------------------------------------------------------------------------

    def move(self, runs: Sequence[tuple[int, int, int]]) -> None:
        """Copy cells in one graph without outputs; each run is (source, target, count)."""
        with self.backend.new_context() as ctx:
            for source, target, count in runs:
                for part in (self.keys, self.values):
                    ctx.forward(part(ctx, source, count).copy(ctx, part(ctx, target, count)))
            ctx.compute()

    def shift(self, deltas: Array) -> None:
        """Rotate the key of each cell by its delta of positions, in place."""
        layout = self.layout
        with self.backend.new_context() as ctx:
            place = self.heads_of_keys(ctx, layout.capacity)
            positions = ctx.input().from_ints(deltas.astype(np.int32))
            whole = place if place.dtype is DType.F32 else place.cast(ctx, DType.F32)
            turned = whole.rope(ctx, positions, layout.dim, layout.base, mode=layout.mode)
            ctx.forward(turned.copy(ctx, place)).compute()


class CacheGraph:
    """A graph of one shape, computed again and again: it stores tokens, which then attend to the history."""

    def __init__(self, cache: KeyValueCache, tokens: int, history: int) -> None:
        layout, config = cache.layout, cache.config
        self.cache, self.tokens, self.history = cache, tokens, history
        self.ctx = ctx = cache.backend.new_context()
        at = ctx.input()
        self.query = at.empty(DType.F32, layout.head, layout.heads, tokens)
        self.key = at.empty(DType.F32, layout.head, layout.kv_heads, tokens)
        self.value = at.empty(DType.F32, layout.row, tokens)
        self.positions = at.empty(DType.I32, tokens)
        self.cells = at.empty(DType.I32, tokens)
        rows = -(-tokens // config.mask_batch_padding) * config.mask_batch_padding
        self.mask = at.empty(config.mask_dtype, history, rows)
        self._store(ctx.layer(0))
        self.result = self._attention(ctx.layer(0))

    def _store(self, ctx: Context) -> None:
        layout = self.cache.layout
        key = self._turn(ctx, self.key)
        ctx.forward(self.cache.key.set_rows(ctx, key.reshape(ctx, layout.row, self.tokens), self.cells))
        if not self.cache.config.permuted_v:
            ctx.forward(self.cache.value.set_rows(ctx, self.value, self.cells))
            return
        # Each element is a row of its own: element e of cell c has the id e * capacity + c.
        flat = self.cache.value.reshape(ctx, 1, layout.capacity * layout.row)
        self.elements = ctx.input().empty(DType.I32, layout.row * self.tokens)
        source = self.value.reshape(ctx, 1, layout.row * self.tokens)
        ctx.forward(flat.set_rows(ctx, source, self.elements))

    def _turn(self, ctx: Context, x: Tensor) -> Tensor:
        layout = self.cache.layout
        return x.rope(ctx, self.positions, layout.dim, layout.base, mode=layout.mode)

    def _attention(self, ctx: Context) -> Tensor:
        return self._turn(ctx, self.query).scaled_dot_product_attention(
            ctx,
            self.cache.heads_of_keys(ctx, self.history),
            self.cache.heads_of_values(ctx, self.history),
            self.mask,
            scale=self.cache.layout.head**-0.5,
            cache_config_applied=True,
        )

    def run(
        self, query: Array, key: Array, value: Array, positions: Array, cells: Array, mask: Array
    ) -> Array:
        """Fill the leaves, compute, and read: (tokens, heads, head)."""
        self.query.from_floats(query)
        self.key.from_floats(key)
        self.value.from_floats(value)
        self.positions.from_ints(positions)
        self.cells.from_ints(cells)
        full = np.full(self.mask.shape[::-1], -np.inf)
        full[: len(mask)] = mask
        self.mask.from_floats(full)
        if self.cache.config.permuted_v:
            within = np.arange(self.cache.layout.row) * self.cache.layout.capacity
            self.elements.from_ints((cells[:, None] + within).reshape(-1))
        self.ctx.compute(self.result)
        return np.asarray(self.result.numpy(), np.float64)
