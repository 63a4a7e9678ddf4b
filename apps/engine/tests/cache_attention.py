"""Attention through a causal cache, compared with attention over the plain history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import backbay
from backbay import Backend, Context, DType, Tensor
from backbay_engine.cache import CacheSizes, CausalCache
from backbay_engine.steps.step import Step, next_step

HEAD, HEADS, KV_HEADS = 32, 4, 2
THREE = CacheSizes(sequences=3, capacity=600, batch=64, dtype=DType.F32)


def turned(ctx: Context, layer: int, keys: Tensor, offsets: Tensor) -> Tensor:
    return keys.rope(ctx, offsets, HEAD, 100.0)


def step_of(cache: CausalCache, sequences: list[int], spans: list[int] | None = None) -> Step:
    """A step with the next tokens of sequences."""
    numbers = None if spans is None else np.array(spans, np.int32)
    return replace(next_step(cache.cells.end, sequences), spans=numbers)


class Attention:
    """Layers of attention through a cache, in traced contexts, and the plain history as the expected result."""

    def __init__(self, backend: Backend, cache: CausalCache, layers: int = 1) -> None:
        self.backend, self.cache, self.layers = backend, cache, layers
        self.rng = np.random.default_rng(3)
        self.kept: dict[Any, tuple[Context, Any, list[Tensor], Tensor, list[Tensor]]] = {}
        self.keys: dict[int, list[np.ndarray]] = {}  # by sequence, not yet turned
        self.values: dict[int, list[np.ndarray]] = {}

    def step(self, sequences: list[int]) -> None:
        """Store and attend, and compare."""
        step = step_of(self.cache, sequences)
        plan = self.cache.plan(step)
        data = [
            self.rng.standard_normal((step.size, n, HEAD)).astype(np.float32)
            for n in (HEADS, KV_HEADS, KV_HEADS)
        ]
        ctx, bound, leaves, positions, results = self._find(step, plan)
        bound.fill(plan)
        positions.from_ints(step.positions)
        for leaf, array in zip(leaves, data, strict=True):
            leaf.from_floats(array)
        ctx.compute(*results)
        for i, sequence in enumerate(sequences):
            self.keys.setdefault(sequence, []).append(data[1][i])
            self.values.setdefault(sequence, []).append(data[2][i])
        queries = rope(data[0].astype(np.float64), step.positions)
        histories = {sequence: self.history(sequence) for sequence in sequences}
        expected = [
            self.expected(*histories[sequence], position, query)
            for sequence, position, query in zip(sequences, step.positions.tolist(), queries, strict=True)
        ]
        for result in results:
            self.compare(result.numpy(), np.array(expected))

    def compare(self, found: np.ndarray, expected: np.ndarray) -> None:
        """f32 sums of a few hundred terms are good to 1e-5."""
        np.testing.assert_allclose(found, expected, atol=1e-5)

    def history(self, sequence: int) -> tuple[np.ndarray, np.ndarray]:
        """The keys of a sequence, turned, and its values."""
        keys, values = (np.array(each[sequence], np.float64) for each in (self.keys, self.values))
        return rope(keys, np.arange(len(keys))), values

    def expected(self, keys: np.ndarray, values: np.ndarray, position: int, query: np.ndarray) -> np.ndarray:
        seen = slice(self.cache.visibility.first(position), position + 1)
        keys, values, rows = keys[seen], values[seen], []
        for head in range(HEADS):
            scores = keys[:, head // (HEADS // KV_HEADS)] @ query[head] * HEAD**-0.5
            weights = np.exp(scores - scores.max())
            rows.append(weights / weights.sum() @ values[:, head // (HEADS // KV_HEADS)])
        return np.array(rows)

    def _find(self, step: Step, plan: Any) -> Any:
        key = (step.size, plan.key)
        if key not in self.kept:
            ctx = self.backend.new_context()
            bound, host = self.cache.bind(ctx, plan), ctx.input()
            query, key_, value = leaves = [
                host.empty(DType.F32, HEAD, n, step.size) for n in (HEADS, KV_HEADS, KV_HEADS)
            ]
            positions, results = host.empty(DType.I32, step.size), []
            for layer in range(self.layers):
                at = ctx.layer(layer)
                bound.put(at, layer, turned(at, layer, key_, positions), value)
                queries = turned(at, layer, query, positions)
                results.append(bound.get(at, layer).attend(at, queries, HEAD**-0.5))
            self.kept[key] = ctx, bound, leaves, positions, results
        return self.kept[key]


def rope(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    angle = positions[:, None, None] * 100.0 ** (-2 * np.arange(HEAD // 2) / HEAD)
    a, b, y = x[..., 0::2], x[..., 1::2], np.empty_like(x)
    y[..., 0::2] = a * np.cos(angle) - b * np.sin(angle)
    y[..., 1::2] = a * np.sin(angle) + b * np.cos(angle)
    return y


def opened(name: str = "cpu_ref", sizes: CacheSizes = THREE, **how: Any) -> tuple[Backend, CausalCache]:
    backend = backbay.open(None, backend=name)
    cache = CausalCache(how.pop("shift", turned), **how)
    cache.open(backend, sizes)
    return backend, cache


def state(cache: CausalCache) -> list[Any]:
    """The whole bookkeeping of the cells."""
    cells = cache.cells
    held = [cells.of(n).tolist() for n in range(len(cells.end))]
    return [cells.free, cells.owners.tolist(), list(cells.begin), list(cells.end), held]
