"""A decoder step over a cache, traced as the engine traces it."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbay import DType

HEAD, HEADS, CAPACITY = 8, 4, 48


class Step:
    """A decoder step; the model's weights are leaves of one context."""

    def __init__(self, backend: Any) -> None:
        self.home = backend.new_context()
        rng = np.random.default_rng(5)

        def draw(*shape: int) -> Any:
            return self.home.from_floats(rng.standard_normal(shape).astype(np.float32) * 0.3)

        width = HEAD * HEADS
        self.wq, self.wk, self.wo = (draw(width, width) for _ in range(3))
        self.norm = draw(width)
        self.cache = self.home.zeros(DType.F32, width, CAPACITY, row_axis=1)

    def run(self, backend: Any, tokens: int, first: int, history: int) -> Any:
        width = HEAD * HEADS
        rng = np.random.default_rng(tokens + first)
        with backend.new_context() as ctx:
            x = ctx.from_floats(rng.standard_normal((tokens, width)).astype(np.float32))
            places = np.arange(first, first + tokens)
            positions, ids = ctx.from_ints(places), ctx.from_ints(places)
            visible = np.arange(history)[None, :] <= places[:, None]
            mask = ctx.from_floats(np.where(visible, 0, -np.inf).astype(np.float32))
            h = x.rms_norm(ctx, self.norm)
            q = self.wq.mulmat(ctx, h).reshape(ctx, HEAD, HEADS, tokens).rope(ctx, positions, HEAD, 1e4)
            k = self.wk.mulmat(ctx, h).reshape(ctx, HEAD, HEADS, tokens).rope(ctx, positions, HEAD, 1e4)
            ctx.forward(self.cache.set_rows(ctx, k.reshape(ctx, width, tokens), ids))
            seen = self.cache.view(ctx, 0, (HEAD, HEADS, history), (4 * HEAD, 4 * width))
            y = q.scaled_dot_product_attention(ctx, seen, seen, mask, scale=HEAD**-0.5)
            out = self.wo.mulmat(ctx, y.reshape(ctx, width, tokens)).add(ctx, x)
            ctx.compute(out)
            return out.numpy()


SHAPES = [(8, 0, 16), (1, 8, 16), (4, 9, 16), (1, 13, 32), (3, 14, 32), (HEADS, 17, 32), (1, 21, CAPACITY)]
