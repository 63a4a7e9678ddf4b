"""Compares a model in a worker process with the same model in this process: time per token, time to a new worker."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from sides import write_json

from backbay_engine import LLM, load

MODEL = Path(__file__).parents[2] / "examples/models/backbay-tiny-f16.gguf"
SLICE = 200  # tokens that each stream makes before the other side has its turn
CONTEXT = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    print("microseconds per token, medians")
    print(f"{'streams':>8} {'':<14} {'here':>8} {'worker':>8} {'cost':>8}")
    for streams in args.streams:
        found = per_token(args.model, args.backend, streams, args.rounds)
        results[f"{streams} streams"] = found
        for clock, (here, worker, cost) in found.items():
            print(f"{streams:>8} {clock:<14} {here:>8.1f} {worker:>8.1f} {cost:>+8.1f}")
    seconds = results["seconds to a new worker"] = time_to_another(args.model, args.backend)
    print(f"from a worker's death to the next answer: {seconds:.2f} s")
    write_json(args.json, results)


def per_token(model: Path, backend: str, streams: int, rounds: int) -> dict[str, tuple[float, float, float]]:
    """Microseconds per token here and in a worker, and the median of the differences of all rounds, by clock."""
    sizes: dict[str, Any] = {"context": CONTEXT, "parallel": streams, "num_threads": 1}
    with load(model, backend, **sizes) as here, load(model, backend, **sizes, worker=True) as there:
        pairs = [(one_slice(here, streams), one_slice(there, streams)) for _ in range(rounds + 1)][1:]
    found = {}
    for number, clock in enumerate(("wall", "processor")):
        locals_, workers = ([side[number] for side in sides] for sides in zip(*pairs, strict=True))
        costs = [there - here for here, there in zip(locals_, workers, strict=True)]
        found[clock] = (statistics.median(locals_), statistics.median(workers), statistics.median(costs))
    return found


def one_slice(llm: LLM, streams: int) -> tuple[float, float]:
    """Microseconds per token of streams that run together, each read piece by piece: of the wall, and of processors."""
    endless = {"logit_bias": dict.fromkeys(llm.end_ids, float("-inf")), "temperature": 0, "num_keep": 0}
    begun, used = time.perf_counter(), processor_time(llm)
    handles = [llm.submit([5 + n], max_tokens=SLICE, reuse=False, **endless) for n in range(streams)]
    for handle in handles:
        for _ in handle:
            pass
    passed, worked = time.perf_counter() - begun, processor_time(llm) - used
    return 1e6 * passed / (SLICE * streams), 1e6 * worked / (SLICE * streams)


def processor_time(llm: LLM) -> float:
    """Seconds of this process, and of the model's worker where the system tells them (Linux)."""
    own = time.process_time()
    if llm.worker_pid is None or sys.platform != "linux":
        return own
    return own + time.clock_gettime((~llm.worker_pid << 3) | 2)  # as clock_getcpuclockid in C


def time_to_another(model: Path, backend: str, rounds: int = 5) -> float:
    """Seconds from the death of a worker to the next answer, the median."""
    found = []
    with load(model, backend, context=CONTEXT, num_threads=1, worker=True) as llm:
        for _ in range(rounds):
            assert llm.worker_pid is not None
            os.kill(llm.worker_pid, signal.SIGKILL)
            begun = time.perf_counter()
            llm.generate([5], max_tokens=1)
            found.append(time.perf_counter() - begun)
    return statistics.median(found)


if __name__ == "__main__":
    main()
