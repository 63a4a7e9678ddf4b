"""The costs of core: tracing an op, recomputing a context, importing; each as a ratio within one run."""

from __future__ import annotations

import argparse
import subprocess
import sys
import timeit
from pathlib import Path

import numpy as np
from sides import write_json

import backbay

REPEATS = 7
TRACE_LIMIT, RECOMPUTE_LIMIT, IMPORT_LIMIT = 5.0, 30e-6, 0.150


class Idle(backbay.Plan):
    """A plan that does nothing, so that only core's time is measured."""

    nbytes = 0

    def run(self, cancel: object) -> None:
        pass

    def read(self, node: backbay.Node) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None:
        pass


def best(statement: str, number: int, names: dict[str, object]) -> float:
    return min(timeit.repeat(statement, globals=names, number=number, repeat=REPEATS)) / number


CALLS = (
    "x.add(ctx, x)",
    "x.silu(ctx)",
    "w.mulmat(ctx, x)",
    "x.rms_norm(ctx, ones, eps=1e-5)",
    "x.reshape(ctx, 8, 8, 3)",
    "x.permute(ctx, 1, 0)",
    "x.slice(ctx, 1, 0, 2)",
)


def tracing(backend: backbay.Backend) -> list[tuple[str, float]]:
    """The cost of each call, in NumPy additions."""
    ctx = backend.new_context(max_nodes=1 << 40)
    names = {
        "ctx": ctx,
        "x": ctx.from_floats(np.ones((3, 64))),
        "w": ctx.from_floats(np.ones((8, 64))),
        "ones": ctx.from_floats(np.ones(64)),
        "a": np.ones(1, np.float32),
        "b": np.ones(1, np.float32),
    }
    numpy_add = best("a + b", 50_000, names)
    print(f"NumPy a + b on one element: {numpy_add * 1e9:.0f} ns")
    return [(call, best(call, 20_000, names) / numpy_add) for call in CALLS]


def recompute(backend: backbay.Backend) -> float:
    """Seconds of a compute whose plan does nothing, with 200 nodes and 20 leaves of another context."""
    states = backend.new_context()
    ctx = backend.new_context()
    x = ctx.from_floats(np.ones(4))
    for _ in range(20):
        x = x.add(ctx, states.from_floats(np.ones(4)))
    for _ in range(180):
        x = x.neg(ctx)
    ctx.compute(x)
    return best("ctx.compute(x)", 2_000, {"ctx": ctx, "x": x})


def import_seconds(statement: str) -> float:
    program = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
        for _ in range(REPEATS)
    ]
    return min(float(run.stdout) for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    reference = backbay.backends()["cpu_ref"].load()
    idle = type("IdleBackend", (reference,), {"compile": lambda self, graph: Idle()})()
    ratios = dict(tracing(idle))
    for name, ratio in ratios.items():
        print(f"  {name:<32} {ratio:5.2f} times  (at most {TRACE_LIMIT})")
    seconds = recompute(idle)
    print(
        f"compute again, without the backend's run: {seconds * 1e6:.1f} us  (at most {RECOMPUTE_LIMIT * 1e6:.0f})"
    )
    numpy, own = import_seconds("import numpy"), import_seconds("import backbay")
    print(
        f"import backbay: {own * 1e3:.0f} ms, {own / numpy:.2f} times NumPy alone  (at most {IMPORT_LIMIT * 1e3:.0f} ms)"
    )
    write_json(
        args.json,
        {"NumPy additions per call": ratios, "recompute": seconds, "import": own, "import numpy": numpy},
    )
    return int(max(ratios.values()) > TRACE_LIMIT or seconds > RECOMPUTE_LIMIT or own > IMPORT_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
