"""cpu_ref's mulmat compared with the NumPy float64 product that it contains."""

from __future__ import annotations

import argparse
import sys
import timeit
from pathlib import Path

import numpy as np
from sides import write_json

import backbay

LIMIT = 1.5
OUT, IN, TOKENS, REPEATS = 1024, 1024, 512, 9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((OUT, IN)).astype(np.float32)
    batch = rng.standard_normal((TOKENS, IN)).astype(np.float32)
    a, b = batch.astype(np.float64), weight.astype(np.float64)
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as ctx:
        y = ctx.from_floats(weight).mulmat(ctx, ctx.from_floats(batch))
        ctx.compute(y)
        ratios, plain = [], []
        for _ in range(REPEATS):  # alternately, since the machine's speed drifts
            plain.append(timeit.timeit(lambda: a @ b.T, number=3) / 3)
            ratios.append(timeit.timeit(lambda: ctx.compute(y), number=3) / 3 / plain[-1])
    ratio = float(np.median(ratios))
    print(
        f"mulmat {OUT} x {IN} x {TOKENS}: {ratio:.2f} times NumPy's float64 product ({np.median(plain) * 1e3:.1f} ms), at most {LIMIT}"
    )
    write_json(args.json, {"times NumPy": ratio, "NumPy": float(np.median(plain))})
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
