"""Random graphs that read and write states."""

from __future__ import annotations

from typing import Any

import numpy as np

import backbay
from backbay import DType

ROWS, WIDTH = 8, 6


def read(rng: np.random.Generator, ctx: Any, state: Any) -> Any:
    """Some part of a state, read now, (6, 2)."""
    at = int(rng.integers(0, ROWS - 1))
    kind = rng.integers(0, 5)
    if kind == 0:
        return state.slice(ctx, 1, at, at + 2).contiguous(ctx)
    if kind == 1:
        return state.view(ctx, 4 * WIDTH * at, (WIDTH, 2), (4 * WIDTH,)).scale(ctx, 0.5)
    if kind == 2:
        return state.rows(ctx, ctx.from_ints([at, (at + 3) % ROWS]))
    if kind == 3:
        columns = state.permute(ctx, 1, 0).slice(ctx, 1, 1, 3).slice(ctx, 0, 0, WIDTH)
        return columns.contiguous(ctx)
    return ctx.from_floats(rng.standard_normal((2, ROWS)).astype(np.float32)).mulmat(
        ctx, state.permute(ctx, 1, 0).contiguous(ctx)
    ).permute(ctx, 1, 0).slice(ctx, 0, 0, WIDTH).contiguous(ctx)  # fmt: skip


def write(rng: np.random.Generator, ctx: Any, state: Any, value: Any) -> Any:
    """Put (6, 2) somewhere into a state; an alias of what was written."""
    at = int(rng.integers(0, ROWS - 1))
    kind = rng.integers(0, 5)
    if kind == 0:
        return value.copy(ctx, state.slice(ctx, 1, at, at + 2))
    if kind == 1:
        return state.set_rows(ctx, value, ctx.from_ints(rng.permutation(ROWS)[:2]))
    if kind == 2:
        return state.set(ctx, value, 4 * WIDTH * at)
    if kind == 3:
        return value.repeat(ctx, 1, ROWS // 2).copy(ctx, state)
    return value.slice(ctx, 0, 0, 2).copy(ctx, state.slice(ctx, 1, at, at + 2).slice(ctx, 0, 1, 3))


def trace(rng: np.random.Generator, home: Any, layers: int) -> tuple[list[Any], list[Any]]:
    """A random graph; its outputs, and the states that it writes. Its steps are spread over `layers`, if there are any."""
    (places,) = rng.spawn(1)
    ctx = home.layer(0) if layers else home
    states = [ctx.from_floats(rng.standard_normal((ROWS, WIDTH)).astype(np.float32))]
    ctx = home.layer(1) if layers else home
    states.append(ctx.from_floats(rng.standard_normal((ROWS, WIDTH)).astype(np.float32)))
    values = [ctx.from_floats(rng.standard_normal((2, WIDTH)).astype(np.float32))]
    kept_views: list[Any] = []
    outputs: list[Any] = []
    for _ in range(int(rng.integers(4, 12))):
        ctx = home.layer(int(places.integers(0, layers))) if layers else home
        state = states[int(rng.integers(0, 2))]
        step = rng.integers(0, 6)
        if step < 2:
            values.append(read(rng, ctx, state))
        elif step == 2:
            alias = write(rng, ctx, state, values[int(rng.integers(0, len(values)))])
            ctx.forward(alias)
            if alias.size == state.size:
                values.append(read(rng, ctx, alias.reshape(ctx, WIDTH, ROWS)))
        elif step == 3:
            kept_views.append(state.slice(ctx, 1, 3, 5))
        elif step == 4 and kept_views:
            values.append(kept_views.pop().sqr(ctx))  # a view from before, read now
        else:
            mixed = values[-1].add(ctx, values[int(rng.integers(0, len(values)))]).tanh(ctx)
            outputs.append(mixed)
            ctx.forward(mixed)
    return [*outputs, values[-1]], states


def trace_cache(rng: np.random.Generator, ctx: Any) -> tuple[list[Any], list[Any]]:
    """A random graph over a window of a cache; some of its writes fall outside of the window."""
    cache = ctx.empty(DType.F32, WIDTH, ROWS, row_axis=1)
    cache.from_floats(rng.standard_normal((ROWS, WIDTH)).astype(np.float32))
    first = int(rng.integers(0, ROWS - 2))
    count = int(rng.integers(2, ROWS - first + 1))
    looks = [
        lambda: cache.view(ctx, 4 * WIDTH * first, (WIDTH, count), (4 * WIDTH,)),
        lambda: cache.slice(ctx, 1, first, first + count),
        lambda: cache.view(ctx, 4 * WIDTH * first, (2, 3, count), (8, 4 * WIDTH)).permute(ctx, 2, 0, 1).permute(
            ctx, 1, 2, 0
        ).contiguous(ctx, WIDTH, count),
    ]  # fmt: skip
    values = [ctx.from_floats(rng.standard_normal((2, WIDTH)).astype(np.float32))]
    outputs: list[Any] = []
    for _ in range(int(rng.integers(3, 9))):
        if rng.integers(0, 2):
            beside = rng.integers(0, 6) == 0
            places = rng.permutation(ROWS if beside else count)[:2] + (0 if beside else first)
            ctx.forward(cache.set_rows(ctx, values[int(rng.integers(0, len(values)))], ctx.from_ints(places)))
        else:
            seen = looks[int(rng.integers(0, len(looks)))]()
            values.append(
                seen.slice(ctx, 1, 0, 2).tanh(ctx)
                if rng.integers(0, 2)
                else seen.tanh(ctx).slice(ctx, 1, 0, 2)
            )
            outputs.append(values[-1])
    return outputs or [values[-1].sqr(ctx)], [cache]


def play(backend: Any, seed: int, *, layers: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    with backbay.open(None, backend=backend) as opened, opened.new_context() as ctx:
        outputs, states = (
            trace_cache(rng, ctx.layer(seed % 2) if layers else ctx)
            if seed % 3 == 2
            else trace(rng, ctx, layers)
        )
        seen: list[Any] = []
        for _ in range(2):  # the second run starts from what the first one wrote
            ctx.compute(*outputs)
            seen += [tensor.numpy() for tensor in (*outputs, *states)]
        return seen
