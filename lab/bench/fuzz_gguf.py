"""Fuzz the GGUF reader: `python lab/bench/fuzz_gguf.py`, with --variants and --first, or --only one of them."""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "core" / "tests"))

from gguf_fuzz import Outcome, run, seeds


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first variant")
    parser.add_argument("--only", type=int, help="run this variant alone, and raise what it raises")
    return parser.parse_args()


def table(outcomes: list[Outcome]) -> str:
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.mutation].append(outcome)
    lines = [
        f"{'mutation':<10}{'variants':>10}{'refused':>10}{'accepted':>10}{'failures':>10}{'slowest ms':>12}"
    ]
    for name, group in [*sorted(groups.items()), ("all", outcomes)]:
        failed = sum(each.failure is not None for each in group)
        accepted = sum(each.accepted for each in group)
        refused = len(group) - accepted - failed
        slowest = max(each.seconds for each in group) * 1e3
        lines.append(f"{name:<10}{len(group):>10}{refused:>10}{accepted:>10}{failed:>10}{slowest:>12.1f}")
    return "\n".join(lines)


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    options = arguments()
    indexes = range(options.first, options.first + options.variants)
    if options.only is not None:
        indexes = range(options.only, options.only + 1)
    with tempfile.TemporaryDirectory() as directory:
        prepared = seeds(Path(directory))
        before, start = peak_mebibytes(), time.perf_counter()
        outcomes = list(run(prepared, indexes))
        seconds, grown = time.perf_counter() - start, peak_mebibytes() - before
    print(table(outcomes))
    print(f"{len(outcomes)} variants in {seconds:.1f} s; peak memory grew by {grown:.1f} MiB")
    failed = [each for each in outcomes if each.failure is not None]
    for each in failed[:20]:
        print(f"variant {each.index} ({each.mutation}): {each.failure!r}")
    if options.only is not None and failed and failed[0].failure is not None:
        raise failed[0].failure
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
