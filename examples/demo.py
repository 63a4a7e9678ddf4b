"""One graph and one model file on every installed backend: what each answers, how fast, and whether they agree."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tiny_model import forward, write_model

import backbay
from backbay import BackbayError, Backend, Context, Tensor

REFERENCE = "cpu_ref"
RUNS = 20


@dataclass
class Row:
    """What one backend made of one job."""

    backend: str
    job: str
    first_ms: float = 0.0
    again_ms: float = 0.0
    answer: str = ""
    difference: float | None = None
    problem: str = ""


def by_hand(backend: Backend, ctx: Context) -> Tensor:
    """A graph built by hand: softmax(silu(w x)), over 512 columns."""
    rng = np.random.default_rng(1)
    w = ctx.from_floats(rng.standard_normal((256, 128)) / 16)  # (in, out) is NumPy's (out, in)
    x = ctx.from_floats(rng.standard_normal((512, 128)))
    return w.mulmat(ctx, x).silu(ctx).softmax(ctx)


def run(
    name: str, job: str, path: Path | None, build: Callable[[Backend, Context], Tensor]
) -> tuple[Row, np.ndarray | None]:
    row = Row(name, job)
    try:
        with backbay.open(path, backend=name) as backend:
            backend.load()
            with backend.new_context() as ctx:
                y = build(backend, ctx)
                row.first_ms = milliseconds(lambda: ctx.compute(y))
                row.again_ms = min(milliseconds(lambda: ctx.compute(y)) for _ in range(RUNS))
                values = y.numpy()
                row.answer = " ".join(str(index) for index in values[:6].argmax(-1))
                return row, values
    except BackbayError as error:
        row.problem = str(error).splitlines()[0]
        return row, None


def milliseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    """The mean squared error, relative to the mean square of what was expected."""
    return float(((found - expected) ** 2).mean() / (expected**2).mean())


def collect(path: Path) -> list[Row]:
    names = sorted(backbay.backends(), key=lambda name: name != REFERENCE)
    rows = []
    for job, file, build in (("a graph built by hand", None, by_hand), (path.name, path, forward)):
        expected = None
        for name in names:
            row, values = run(name, job, file, build)
            expected = values if expected is None else expected
            if values is not None and expected is not None:
                row.difference = nmse(values, expected)
            rows.append(row)
    return rows


def show(rows: list[Row]) -> None:
    for job in dict.fromkeys(row.job for row in rows):
        print(f"\n{job}")
        print(
            f"  {'backend':<10} {'first run':>10} {'again':>10}   {'NMSE':>8}   largest element of six columns"
        )
        for row in (row for row in rows if row.job == job):
            if row.problem:
                print(f"  {row.backend:<10} {row.problem}")
                continue
            times = f"{row.first_ms:>7.2f} ms {row.again_ms:>7.2f} ms"
            print(f"  {row.backend:<10} {times}   {row.difference:>8.1e}   {row.answer}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep the model file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "tiny.gguf"
        write_model(path)
        rows = collect(path)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(f"{len(backbay.backends())} backends: {', '.join(sorted(backbay.backends()))}")
        show(rows)
    # Quantized weights cost some precision; more than this is a fault.
    wrong = [row for row in rows if row.problem or row.difference is None or row.difference > 1e-3]
    print(
        f"\n{len(rows) - len(wrong)} of {len(rows)} runs agree with {REFERENCE}" if not options.json else "",
        end="\n",
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
