"""Counts false alarms: runs the suite with many seeds on the correct backends, which must all pass.

    python lab/bench/conform_seeds.py 100                 # seeds 0..99, each over every correct backend, smoke size
    python lab/bench/conform_seeds.py 3 --size default --first 40 --jobs 2 --json seeds.json
    python lab/bench/conform_seeds.py 100 --backend cpu_ref --backend ggml --backend onnx    # installed ones, isolated

Prints each run as it ends. The exit status is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

from backbay import backends
from backbay_conformance import run
from backbay_selftest import CORRECT, reference
from backbay_selftest.correct import variants


@dataclass(frozen=True)
class Run:
    """A run of one seed on one backend, and its failures."""

    seed: int
    backend: str
    tried: int
    seconds: float
    failures: list[dict[str, object]]


def one(task: tuple[int, str], size: str) -> Run:
    """Run items of the suite on one backend with one seed; installed backends run in a worker, as in the command."""
    seed, name = task
    warnings.simplefilter("ignore")
    variant = variants(reference()).get(name)
    report = run(variant or name, seed=seed, size=size, in_process=variant is not None)
    failures = [outcome.as_dict() for outcome in report.failures]
    return Run(seed, name, sum(report.counts.values()), round(report.seconds, 1), failures)


def close_output() -> None:
    """Give a process a standard output of its own: the suite reports what is printed there meanwhile."""
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def runs(options: argparse.Namespace) -> Iterator[Run]:
    names = options.backend or ["reference", *CORRECT]
    tasks = list(product(range(options.first, options.first + options.seeds), names))
    work = partial(one, size=options.size)
    if options.jobs == 1:
        yield from map(work, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(options.jobs, close_output) as pool:
        yield from pool.imap_unordered(work, tasks)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--size", choices=("smoke", "default", "nightly"), default="smoke")
    known = ("reference", *CORRECT, *backends())
    parser.add_argument("--backend", action="append", choices=known, help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started, done = time.monotonic(), []
    for result in runs(options):
        done.append(result)
        wrong = [f"{failure['item']} ({failure.get('check', '')})" for failure in result.failures]
        verdict = f"FALSE ALARM {', '.join(wrong)}" if wrong else "passed"
        print(
            f"seed {result.seed} {result.backend}: {result.tried} in {result.seconds} s, {verdict}",
            flush=True,
        )
        if options.json:
            options.json.write_text(
                json.dumps([asdict(run) for run in done], indent=1) + "\n", encoding="utf-8"
            )
    alarms = sum(bool(result.failures) for result in done)
    tried = sum(result.tried for result in done)
    print(f"{len(done)} runs, {tried} items, {alarms} false alarms, {time.monotonic() - started:.0f} s")
    return 1 if alarms else 0


if __name__ == "__main__":
    sys.exit(main())
