"""Runs random graphs in worker processes: no graph that core accepts may kill its process.

python plugins/ggml/tools/fuzz.py --count 50000 --workers 2
"""

from __future__ import annotations

import argparse
import concurrent.futures
import faulthandler
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path

import backbay

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[3] / "core" / "tests")]
from random_graphs import RandomGraph
from rpc_servers import serving

BATCH = 50
Batch = tuple[int, int]  # the first seed, and the number of graphs
PROGRESS = 5000  # graphs between two reports of progress
GRAPH_SECONDS = 240  # a graph that takes longer counts as a hang


def run_batch(first: int, count: int, backend_name: str, spread: bool) -> dict[str, int]:
    """Run some graphs in this process; an exception that is not a BackbayError is a finding too."""
    with serving() if spread else nullcontext() as server:
        params = backbay.BackendParams(num_threads=2, options={"rpc": server.endpoint} if server else {})
        return run_graphs(first, count, backend_name, params)


def run_graphs(first: int, count: int, backend_name: str, params: backbay.BackendParams) -> dict[str, int]:
    tally: dict[str, int] = {}
    with backbay.open(None, backend=backend_name, params=params) as backend:
        for seed in range(first, first + count):
            with backend.new_context() as ctx:
                graph = RandomGraph(ctx, seed)
                faulthandler.dump_traceback_later(GRAPH_SECONDS, exit=True)
                try:
                    outcome = graph.run()
                except Exception:  # any other exception is a finding
                    trace = traceback.format_exc(limit=-6)
                    raise RuntimeError(f"seed {seed}: {graph.log}\n{trace}") from None
            tally[outcome] = tally.get(outcome, 0) + 1
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--rpc", action="store_true", help="on the CPU and the device of an RPC server")
    options = parser.parse_args()
    # Spinning threads slow each other down: with waiting threads, small graphs run up to thirty times as fast.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    started, tally, findings = time.monotonic(), Counter[str](), 0
    last = options.first + options.count
    batches = [
        (first, min(options.batch, last - first)) for first in range(options.first, last, options.batch)
    ]
    while batches:
        # A process that dies breaks its pool. Lost batches run again, each in a pool of its own.
        lost, found = run_batches(batches, options.workers, options, tally)
        findings += found
        suspects, batches = lost[: 2 * options.workers], lost[2 * options.workers :]
        for batch in suspects:
            died, found = run_batches([batch], 1, options, tally)
            findings += found + len(died)
            for first, count in died:
                print(f"a process died within {count} graphs from seed {first}", flush=True)
    print(f"{options.count} graphs in {time.monotonic() - started:.0f} s: {dict(tally)}, {findings} findings")
    return int(findings > 0)


def run_batches(
    batches: list[Batch], workers: int, options: argparse.Namespace, tally: Counter[str]
) -> tuple[list[Batch], int]:
    """Run batches in spawned workers; returns the batches lost with a dying process, and the number of findings."""
    lost, findings, spawn = [], 0, multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        runs = {pool.submit(run_batch, *batch, options.backend, options.rpc): batch for batch in batches}
        for run in concurrent.futures.as_completed(runs):
            try:
                tally.update(run.result())
                if tally.total() % PROGRESS < options.batch:
                    print(f"{tally.total()} graphs so far: {dict(tally)}", file=sys.stderr, flush=True)
            except BrokenProcessPool:
                lost.append(runs[run])
            except RuntimeError as error:
                findings += 1
                print(error)
    return sorted(lost), findings


if __name__ == "__main__":
    sys.exit(main())
