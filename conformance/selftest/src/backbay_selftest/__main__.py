"""`python -m backbay_selftest`: the planted faults that the suite catches, and those that rival checks would catch."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from . import FAULTS, Kind
from .detection import Detection, detect
from .table import line, summary, summary_text, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if enough of the faults are caught, 1 if not, 2 for faults that do not exist."""
    options = parser().parse_args(arguments)
    chosen = [f.name for f in FAULTS.values() if not options.kind or f.kind in options.kind]
    if unknown := sorted({*options.faults} - {*FAULTS}):
        sys.stderr.write(f"no such fault: {', '.join(unknown)}\n")
        return 2
    rows = detect_all(options.faults or chosen, options)
    facts = {"size": options.size, "seed": options.seed, **summary(rows)}
    sys.stdout.write(f"{table(rows)}\n{summary_text(facts)}\n")
    if options.json:
        report = {**facts, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if facts["caught"] >= options.require else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m backbay_selftest", description=__doc__)
    made.add_argument("faults", nargs="*", help="names of faults; all without any")
    made.add_argument(
        "--kind", action="append", choices=[*map(str, Kind)], help="a class of faults; repeatable"
    )
    made.add_argument("--size", choices=("smoke", "default", "nightly"), default="default")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--budget", type=float, default=360.0, help="seconds for each fault")
    made.add_argument("--jobs", type=int, default=1, help="faults tried at a time, in processes")
    made.add_argument("--no-rivals", action="store_true", help="leave out the comparison")
    made.add_argument("--require", type=float, default=0.95, help="the least share of caught faults, 0.95")
    made.add_argument("--json", type=Path, help="write the table to this file, too")
    return made


def detect_all(names: Sequence[str], options: argparse.Namespace) -> list[Detection]:
    """Try every fault, and report each result at once."""
    one = partial(
        detect, size=options.size, seed=options.seed, rivals=not options.no_rivals, budget=options.budget
    )
    if options.jobs == 1:
        return [reported(one(name)) for name in names]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        return [reported(row) for row in pool.imap(one, names)]


def reported(row: Detection) -> Detection:
    sys.stderr.write(f"{line(row)}\n")
    return row


if __name__ == "__main__":
    sys.exit(main())
