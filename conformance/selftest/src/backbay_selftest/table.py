"""The table of all faults, and the share that is caught of each class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from .detection import Detection
from .faults import Kind

HEAD = f"{'fault':<58} {'items':>6} {'seconds':>8}  {'noticed by':<14} {'NMSE':<5} {'tolerance'}"


def line(row: Detection) -> str:
    marks = {True: "yes", False: "no", None: "-"}
    found = row.check if row.caught else "NOT CAUGHT"
    return f"{row.fault[:58]:<58} {row.items:>6} {row.seconds:>8.2f}  {found:<14} {marks[row.nmse]:<5} {marks[row.tolerance]}"


def table(rows: Sequence[Detection]) -> str:
    """Every fault under its class."""
    lines = []
    for kind in Kind:
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
        "kinds": {kind: shares([row for row in rows if row.kind == kind]) for kind in Kind},
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
    """The summary for people."""

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
