"""Steps of the ggml backend on a quiet machine, and beside a busy loop on every core.

    python lab/bench/ggml_neighbours.py --shape small --sides 1 2 2:GOMP_SPINCOUNT=0

A side is a number of threads; NAME=VALUE after a colon sets an environment variable. All sides take turns in short
slices, and in each slice the neighbours either run or are stopped. The table shows tokens per second.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_file import arguments, be_side_or_compare
from sides import Side, serve

SLICE = 0.3  # seconds
TOKENS = 8  # at a time
PROMPT = [1, *range(300, 316)]
QUIET, BUSY = "quiet", "busy"


def main() -> None:
    parser = arguments(__doc__, rounds=10)
    parser.add_argument("--backend", default="ggml")
    parser.add_argument("--sides", nargs="+", default=["1", "2"])
    be_side_or_compare(parser.parse_args(), be_side, compare)


def be_side(args: argparse.Namespace) -> None:
    import backbay_engine

    llm = backbay_engine.load(
        args.model, args.backend, context=256, num_threads=int(args.side.partition(":")[0])
    )

    def answer(request: str) -> dict[str, float]:
        begun, tokens = time.perf_counter(), 0
        while time.perf_counter() - begun < SLICE:
            tokens += len(llm.generate(PROMPT, max_tokens=TOKENS, temperature=0).tokens)
        return {request: tokens / (time.perf_counter() - begun)}

    answer(QUIET)
    serve({}, answer)


@contextmanager
def neighbours() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A busy loop for every core, stopped for now."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        tell(loops, signal.SIGSTOP)
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def tell(loops: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for loop in loops:
        loop.send_signal(number)


def compare(args: argparse.Namespace) -> dict[str, Any]:
    sides = [side_of(name, args) for name in args.sides]
    found: dict[str, dict[str, list[float]]] = {side.name: {QUIET: [], BUSY: []} for side in sides}
    with neighbours() as loops:
        for n in range(args.rounds):
            for request in (QUIET, BUSY):
                tell(loops, signal.SIGCONT if request == BUSY else signal.SIGSTOP)
                for side in (*sides[n % len(sides) :], *sides[: n % len(sides)]):
                    found[side.name][request].append(side.ask(request)[request])
            tell(loops, signal.SIGSTOP)
    for side in sides:
        side.close()
    print(f"{'threads':<40}{QUIET:>10}{BUSY:>10}{'ratio':>9}   of single rounds")
    for name, rates in found.items():
        ratios = [busy / quiet for busy, quiet in zip(rates[BUSY], rates[QUIET], strict=True)]
        quiet, busy = (statistics.median(rates[request]) for request in (QUIET, BUSY))
        print(
            f"{name:<40}{quiet:>10.1f}{busy:>10.1f}{statistics.median(ratios):>9.3f}"
            f"   {min(ratios):.3f} .. {max(ratios):.3f}"
        )
    return found


def side_of(name: str, args: argparse.Namespace) -> Side:
    words = [__file__, "--side", name, "--model", str(args.model), "--backend", args.backend]
    variables = dict(word.split("=", 1) for word in name.split(":")[1:])
    return Side(name, words, variables)


if __name__ == "__main__":
    main()
