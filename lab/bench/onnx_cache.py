"""Decode steps of the onnx backend over growing caches: one write to each cache tensor, two, and a rotation in place.

The time of a step must not grow with the cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sides import write_json

import backbay
from backbay import BackendParams, DType

HEAD, KV_HEADS, HEADS, HISTORY, LAYERS = 64, 8, 32, 256, 4
WIDTH = HEAD * KV_HEADS


class Caches:
    """Keys and values of some layers."""

    def __init__(self, backend: Any, capacity: int, dtype: DType) -> None:
        self.backend, self.capacity = backend, capacity
        self.home = backend.new_context()
        self.tensors = [
            tuple(self.home.layer(n).zeros(dtype, WIDTH, capacity, row_axis=1) for _ in range(2))
            for n in range(LAYERS)
        ]

    def decode(self, writes: int) -> Callable[[], None]:
        """A step of one token over a history, with a number of writes to each tensor."""
        ctx = self.backend.new_context()
        x = ctx.from_floats(np.ones((1, HEAD * HEADS), np.float32))
        ids = [ctx.from_ints([HISTORY - 1 - n]) for n in range(writes)]
        for tensors in self.tensors:
            for tensor in tensors:
                for each in ids:
                    ctx.forward(tensor.set_rows(ctx, x.slice(ctx, 0, 0, WIDTH).contiguous(ctx), each))
            size = tensors[0].dtype.type_size
            key, value = (
                t.view(ctx, 0, (HEAD, KV_HEADS, HISTORY), (size * HEAD, size * WIDTH)) for t in tensors
            )
            y = x.reshape(ctx, HEAD, HEADS, 1).scaled_dot_product_attention(ctx, key, value, scale=0.125)
            x = y.reshape(ctx, HEAD * HEADS, 1)
        ctx.forward(x)
        return lambda: ctx.compute(x)

    def shift(self) -> Callable[[], None]:
        """Rotate the keys of the history in place."""
        ctx = self.backend.new_context()
        by = ctx.from_ints(np.full(HISTORY, 2))
        for key, _ in self.tensors:
            size = key.dtype.type_size
            place = key.view(ctx, 0, (HEAD, KV_HEADS, HISTORY), (size * HEAD, size * WIDTH))
            ctx.forward(place.rope(ctx, by, HEAD, 1e4).copy(ctx, place))
        return lambda: ctx.compute()


def microseconds(run: Callable[[], None], times: int) -> float:
    """The median time of a run."""
    run()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return 1e6 * float(np.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--dtype", default="F32", choices=["F32", "F16"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = []
    print(f"{LAYERS} layers of {given.dtype} rows of {WIDTH}, history {HISTORY}; microseconds for a step")
    print(f"{'rows':>8}{'one write':>12}{'two writes':>12}{'turned':>12}{'booked for graphs':>20}")
    for rows in given.rows:
        params = BackendParams(num_threads=given.threads)
        with backbay.open(None, backend="onnx", params=params) as backend:
            caches = Caches(backend, rows, DType[given.dtype])
            steps = [caches.decode(1), caches.decode(2), caches.shift()]
            times = [microseconds(step, given.runs) for step in steps]
            booked = backend.memory().cpu.graph.size
            results.append({"rows": rows, "microseconds": times, "booked": booked})
            print(f"{rows:8d}{''.join(f'{each:12.0f}' for each in times)}{booked:20d}")
    write_json(given.json, {"dtype": given.dtype, "threads": given.threads, "steps": results})


if __name__ == "__main__":
    main()
