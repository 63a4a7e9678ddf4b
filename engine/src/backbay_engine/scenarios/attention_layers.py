"""Layers of attention over a cache, without a model around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Tensor

from ..cache.contract import Cache, CachePlan

Array = NDArray[Any]
HEAD = 32


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
    """Layers of attention over a cache, traced as a model traces them: each layer puts, gets and attends.

    `spans` says which layers let the tokens of a span see each other.
    """

    def __init__(
        self,
        backend: Backend,
        cache: Cache,
        shapes: Sequence[AttentionShape],
        plan: CachePlan,
        size: int,
        spans: Callable[[int], bool],
    ) -> None:
        self.ctx = backend.new_context()
        self.bound = cache.bind(self.ctx, plan)
        host = self.ctx.input()
        self.positions = host.empty(DType.I32, size)
        self.inputs: list[list[Tensor]] = []
        self.results: list[Tensor] = []
        for i, shape in enumerate(shapes):
            ctx = self.ctx.layer(i)
            heads = (shape.heads, shape.kv_heads, shape.kv_heads)
            query, key, value = made = [host.empty(DType.F32, HEAD, n, size) for n in heads]
            self.bound.put(ctx, i, shape.turn(ctx, key, self.positions), value)
            seen = self.bound.get(ctx, i, spans=spans(i))
            self.inputs.append(made)
            self.results.append(
                shape.turn(ctx, query, self.positions).scaled_dot_product_attention(
                    ctx, seen.key, seen.value, seen.mask, scale=HEAD**-0.5, cache_config_applied=True
                )
            )

    def run(self, positions: Array, data: list[list[Array]]) -> list[Array]:
        """The results of each layer, (tokens, heads, HEAD)."""
        self.positions.from_ints(positions)
        for leaves, arrays in zip(self.inputs, data, strict=True):
            for leaf, array in zip(leaves, arrays, strict=True):
                leaf.from_floats(array)
        self.ctx.compute(*self.results)
        return [np.asarray(result.numpy(), np.float64) for result in self.results]
