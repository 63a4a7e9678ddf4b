"""Compares a model in a worker process with the same model in this process: time per token, time to a new worker."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from sides import write_json

from backbay_engine import LLM, load

MODEL = Path(__file__).parents[1] / "examples/models/backbay-tiny-f16.gguf"
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
    print(
        f"{'streams':>8} {'here':>10} {'worker':>10} {'cost':>10}   microseconds per token, medians of {args.rounds}"
    )
    for streams in args.streams:
        here, worker, cost = per_token(args.model, args.backend, streams, args.rounds)
        results[f"{streams} streams"] = {"here": here, "worker": worker, "cost": cost}
        print(f"{streams:>8} {here:>10.1f} {worker:>10.1f} {cost:>+10.1f}")
    seconds = results["seconds to a new worker"] = time_to_another(args.model, args.backend)
    print(f"from a worker's death to the next answer: {seconds:.2f} s")
    write_json(args.json, results)


def per_token(model: Path, backend: str, streams: int, rounds: int) -> tuple[float, float, float]:
    """Microseconds per token here and in a worker, and the median of the differences of all rounds."""
    sizes: dict[str, Any] = {"context": CONTEXT, "parallel": streams, "num_threads": 1}
    with load(model, backend, **sizes) as here, load(model, backend, **sizes, worker=True) as there:
        pairs = [(one_slice(here, streams), one_slice(there, streams)) for _ in range(rounds + 1)][1:]
    locals_, workers = zip(*pairs, strict=True)
    return (
        statistics.median(locals_),
        statistics.median(workers),
        statistics.median(there - here for here, there in pairs),
    )


def one_slice(llm: LLM, streams: int) -> float:
    """Microseconds per token of streams that run together, each read piece by piece."""
    endless = {"logit_bias": dict.fromkeys(llm.end_ids, float("-inf")), "temperature": 0, "num_keep": 0}
    begun = time.perf_counter()
    handles = [llm.submit([5 + n], max_tokens=SLICE, reuse=False, **endless) for n in range(streams)]
    for handle in handles:
        for _ in handle:
            pass
    return 1e6 * (time.perf_counter() - begun) / (SLICE * streams)


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
