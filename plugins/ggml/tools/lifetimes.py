"""Opens and closes contexts and models thousands of times: the process must not grow.

python plugins/ggml/tools/lifetimes.py --contexts 10000 --models 200
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np

import backbay
from backbay import Backend, BackendParams

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[3] / "core" / "tests")]
from layered_model import generate, write_model
from rpc_servers import serving

GROWTH = 2 << 20  # bytes; heap fragmentation may cause this much growth after the first tenth


def context(backend: Backend) -> None:
    """A small graph with a cache, computed twice."""
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.arange(64))
        cache = ctx.layer(0).zeros(backbay.DType.F16, 64, 8)
        y = (
            x.reshape(ctx, 64, 1)
            .copy(ctx, cache.slice(ctx, 1, 0, 1))
            .cast(ctx, backbay.DType.F32)
            .softmax(ctx)
        )
        ctx.compute(y)
        x.from_floats(np.ones(64))
        ctx.compute(y)


def model(path: Path, params: BackendParams) -> None:
    with backbay.open(path, backend="ggml", params=params) as backend:
        backend.load()
        generate(backend)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def grows(what: str, count: int, once: Callable[[], None]) -> bool:
    """Repeat an action, print the process's growth after the first tenth, and return whether it is too large."""
    began, warm = time.monotonic(), resident()
    for n in range(count):
        if n == max(1, count // 10):
            warm = resident()
        once()
    growth = resident() - warm
    seconds = time.monotonic() - began
    print(f"{count} {what}: {growth / 1024:.0f} KiB more after the first tenth, {seconds:.0f} s", flush=True)
    return growth > GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--rpc", action="store_true", help="on the CPU and the device of an RPC server")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with serving() if args.rpc else nullcontext() as server, tempfile.TemporaryDirectory() as folder:
        params = BackendParams(num_threads=2, options={"rpc": server.endpoint} if server else {})
        path = write_model(Path(folder) / "small.gguf")
        with backbay.open(None, backend="ggml", params=params) as backend:
            grown = [grows("contexts", args.contexts, lambda: context(backend))]
        grown.append(grows("models", args.models, lambda: model(path, params)))
    return int(any(grown))


if __name__ == "__main__":
    sys.exit(main())
