"""Opens and closes thousands of contexts on the onnx backend: time of each, and growth of memory."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import backbay
from backbay import DType


def resident() -> float:
    """MiB of this process's private memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def step(backend: Any, cache: Any, tokens: int, history: int) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((tokens, 64), np.float32))
        ctx.forward(cache.set_rows(ctx, x, ctx.from_ints(np.arange(tokens))))
        seen = cache.view(ctx, 0, (16, 4, history), (64, 256))
        y = x.reshape(ctx, 16, 4, tokens).scaled_dot_product_attention(ctx, seen, seen, scale=0.25)
        ctx.compute(y.rms_norm(ctx))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, default=10_000)
    count = parser.parse_args().contexts
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as home:
        cache = home.zeros(DType.F32, 64, 512, row_axis=1)
        for part in range(5):
            started = time.perf_counter()
            for n in range(count // 5):
                step(backend, cache, 1 + n % 7, 64 * (1 + n % 8))
            each = (time.perf_counter() - started) / (count // 5)
            print(
                f"{(part + 1) * count // 5:7d} contexts  {1e3 * each:6.2f} ms each  {resident():7.1f} MiB  "
                f"{backend.sessions.created} sessions  {backend.memory().total()} bytes booked"
            )


if __name__ == "__main__":
    main()
