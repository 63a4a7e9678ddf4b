"""`python -m backbay_selftest`: the planted faults that the suite catches, and those that rival checks would catch."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from . import FAULTS, FaultKind
from .detection import Detection, detect

HEAD = f"{'fault':<58} {'items':>6} {'seconds':>8}  {'noticed by':<14} {'NMSE':<5} {'tolerance'}"


def line(row: Detection) -> str:
    marks = {True: "yes", False: "no", None: "-"}
    found = row.check if row.caught else "NOT CAUGHT"
    return f"{row.fault[:58]:<58} {row.items:>6} {row.seconds:>8.2f}  {found:<14} {marks[row.nmse]:<5} {marks[row.tolerance]}"


def table(rows: Sequence[Detection]) -> str:
    lines = []
    for kind in FaultKind:
        mine = [row for row in rows if row.kind == kind]
        if mine:
            lines += ["", kind, HEAD, *map(line, mine)]
    return "\n".join(lines)


def summary(rows: Sequence[Detection]) -> dict[str, Any]:
    """The shares of caught faults, by class and in all, and the seconds until a fault was caught."""
    caught = [row.seconds for row in rows if row.caught]
    return {
        **shares(rows),
        "median_seconds": round(median(caught), 2) if caught else None,
        "slowest_seconds": round(max(caught), 2) if caught else None,
        "missed": [row.fault for row in rows if not row.caught],
        "kinds": {kind: shares([row for row in rows if row.kind == kind]) for kind in FaultKind},
    }


def shares(rows: Sequence[Detection]) -> dict[str, Any]:
    """The number of faults, and the shares that the suite and its rivals caught."""
    return {
        "faults": len(rows),
        "caught": share(row.caught for row in rows),
        "nmse": share(row.nmse for row in rows if row.nmse is not None),
        "tolerance": share(row.tolerance for row in rows if row.tolerance is not None),
    }


def share(found: Iterable[bool | None]) -> float | None:
    """The share of true values, from 0 to 1; None without values."""
    values = list(found)
    return round(sum(map(bool, values)) / len(values), 3) if values else None


def summary_text(facts: dict[str, Any]) -> str:

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f} %"

    lines = ["", f"{'class':<46} {'faults':>6} {'caught':>7} {'NMSE':>6} {'tolerance':>10}"]
    for name, row in [*facts["kinds"].items(), ("all", facts)]:
        if row["faults"]:
            caught, nmse, tolerance = (percent(row[key]) for key in ("caught", "nmse", "tolerance"))
            lines.append(f"{name:<46} {row['faults']:>6} {caught:>7} {nmse:>6} {tolerance:>10}")
    lines.append(f"detected in {facts['median_seconds']} s (median), {facts['slowest_seconds']} s (slowest)")
    lines.append(f"not caught: {', '.join(facts['missed']) or 'none'}")
    return "\n".join(lines)


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
        "--kind", action="append", choices=[*map(str, FaultKind)], help="a class of faults; repeatable"
    )
    made.add_argument("--size", choices=("smoke", "default", "nightly"), default="default")
    made.add_argument("--few-shapes", action="store_true", help="as `backbay conform --few-shapes`")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--budget", type=float, default=360.0, help="seconds of a processor for each fault")
    made.add_argument("--jobs", type=int, default=1, help="faults tried at a time, in processes")
    made.add_argument("--no-rivals", action="store_true", help="leave out the comparison")
    made.add_argument("--require", type=float, default=0.95, help="the least share of caught faults, 0.95")
    made.add_argument("--json", type=Path, help="write the table to this file, too")
    return made


def detect_all(names: Sequence[str], options: argparse.Namespace) -> list[Detection]:
    """Try every fault in a fresh process, since some leave memory behind, and report each result at once."""
    one = partial(
        detect,
        size=options.size,
        seed=options.seed,
        few_shapes=options.few_shapes,
        rivals=not options.no_rivals,
        budget=options.budget,
    )
    if len(names) == 1:
        return [reported(one(*names))]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(options.jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN), 1) as pool:
        return [reported(row) for row in pool.imap(one, names)]


def reported(row: Detection) -> Detection:
    sys.stderr.write(f"{line(row)}\n")
    return row


if __name__ == "__main__":
    sys.exit(main())
