"""A program that prints, for a graph of each op, the booked working memory and the bytes that a run takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import backbay
from backbay import DType
from backbay.internals import return_freed_memory
from backbay.plugin import CPU

WIDTH, ROWS = 1024, 2048  # 8 MiB of float32
Graph = Callable[[Any], Any]


def leaf(ctx: Any, *shape: int, dtype: DType = DType.F32) -> Any:
    tensor = ctx.empty(dtype, *shape)
    numbers = np.random.default_rng(0).standard_normal(shape[::-1]).astype(np.float32)
    return tensor.from_floats(numbers) if dtype is DType.F32 else tensor


def of(op: str, *args: Any, up: bool = False, **keywords: Any) -> Graph:
    """An op on the result of another; its operand and its result are both used again."""

    def trace(ctx: Any) -> Any:
        x = leaf(ctx, WIDTH, ROWS).scale(ctx, 0.5)
        gate = [leaf(ctx, WIDTH, ROWS).scale(ctx, 0.25)] if up else []
        return getattr(x, op)(ctx, *gate, *args, **keywords).scale(ctx, 2.0).sum_rows(ctx), x.sum_rows(ctx)

    return trace


def attention(dtype: DType, **keywords: Any) -> Graph:
    def trace(ctx: Any) -> Any:
        query = leaf(ctx, 64, 16, 128).scale(ctx, 0.5)
        key, mask = leaf(ctx, 64, 4, 1024, dtype=dtype), leaf(ctx, 1024, 128)
        return (
            query.scaled_dot_product_attention(ctx, key, key, mask, scale=0.1, **keywords).scale(ctx, 2.0),
        )

    return trace


def turned(ctx: Any) -> Any:
    x = leaf(ctx, 64, 16, ROWS).scale(ctx, 0.5)
    return (x.rope(ctx, ctx.from_ints(np.arange(ROWS)), 64, 1e4).scale(ctx, 2.0).sum_rows(ctx),)


def experts(ctx: Any) -> Any:
    ids = ctx.from_ints(np.random.default_rng(0).integers(0, 8, (ROWS, 2)))
    x = leaf(ctx, 256, 1, ROWS).scale(ctx, 0.5)
    return (leaf(ctx, 256, 512, 8).mulmat_id(ctx, x, ids).scale(ctx, 2.0).sum_rows(ctx),)


def windowed(ctx: Any) -> Any:
    x = leaf(ctx, ROWS, WIDTH, 1).scale(ctx, 0.5)
    return (x.conv1d_dw(ctx, leaf(ctx, 4, 1, WIDTH), 1, 0, 1).scale(ctx, 2.0).sum_rows(ctx),)


def viewed(ctx: Any) -> Any:
    return (leaf(ctx, 64, 16, ROWS).permute(ctx, 2, 1, 0).scale(ctx, 2.0).sum_rows(ctx),)


def picked(ctx: Any) -> Any:
    x = leaf(ctx, WIDTH, ROWS).scale(ctx, 0.5)
    return (x.top_k(ctx, 8).cast(ctx, DType.F32).sum_rows(ctx),)


def sorted_rows(ctx: Any) -> Any:
    x = leaf(ctx, WIDTH, ROWS).scale(ctx, 0.5)
    return (x.argsort(ctx).cast(ctx, DType.F32).sum_rows(ctx),)


def halves(ctx: Any) -> Any:
    x = leaf(ctx, WIDTH, ROWS, dtype=DType.F16)
    return (x.scale(ctx, 0.5).add(ctx, x).scale(ctx, 2.0).sum_rows(ctx),)


def chain(ctx: Any) -> Any:
    x = leaf(ctx, WIDTH, ROWS)
    for _ in range(6):
        x = x.add(ctx, x.tanh(ctx).silu(ctx))
    return (x.sum_rows(ctx),)


def written(ctx: Any) -> Any:
    cache = ctx.zeros(DType.F16, WIDTH, ROWS, row_axis=1)
    rows = leaf(ctx, WIDTH, ROWS // 2).scale(ctx, 0.5)
    ctx.forward(cache.set_rows(ctx, rows, ctx.from_ints(np.arange(ROWS // 2))))
    return (cache.slice(ctx, 1, 0, 8).scale(ctx, 1.0),)


PLAIN = ("exp", "tanh", "sigmoid", "silu", "gelu", "quick_gelu", "softplus", "softmax", "cumsum", "variance")
GRAPHS: dict[str, Graph] = {
    **{op: of(op) for op in (*PLAIN, "layer_norm", "rms_norm", "l2_norm")},
    "swiglu": of("swiglu", 1.7, 7.0, up=True),
    "gated": of("gelu", up=True),
    "repeat": of("repeat", 1, 2),
    "attention": attention(DType.F32),
    "attention_f16": attention(DType.F16, softcap=30.0),
    **{
        f.__name__: f
        for f in (turned, experts, windowed, viewed, picked, sorted_rows, halves, chain, written)
    },
}


def resident(kind: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(kind))


def peak(run: Callable[[], None]) -> int:
    """The most bytes of real memory that a run adds."""
    return_freed_memory()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    run()
    return resident("VmHWM") - before


def measure(trace: Graph) -> tuple[int, int]:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        outputs = trace(ctx)
        ctx.forward(*outputs).reserve()
        booked = backend.services.workspaces[CPU].booked  # type: ignore[attr-defined]
        return booked, peak(lambda: ctx.compute(*outputs))


def main() -> None:
    measure(chain)  # memory that a process takes once
    print(json.dumps({name: measure(trace) for name, trace in GRAPHS.items()}))


if __name__ == "__main__":
    main()
