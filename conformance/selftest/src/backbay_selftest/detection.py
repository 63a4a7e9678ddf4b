"""Whether the suite notices a fault: after how many items and seconds, and which check it was."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backbay_conformance.runner.item_run import run_item
from backbay_conformance.runner.selection import Item, items, select
from backbay_conformance.suite.case import CASES
from backbay_conformance.suite.lab import lab_for
from backbay_conformance.suite.profiles import PROFILES, STANDARD
from backbay_conformance.suite.scenario import SCENARIOS

from .faults import FAULTS, PlantedFault, reference
from .rival_checks import Noticed, noticed


@dataclass(frozen=True)
class Detection:
    """The result for one fault. Times count the runs of items alone; `check` noticed the fault first."""

    fault: str
    kind: str
    like: str
    caught: bool
    items: int
    seconds: float
    check: str = ""
    item: str = ""
    message: str = ""
    nmse: bool | None = None
    tolerance: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def own(keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The suite's own cases and scenarios, without those of other distributions."""
    return [
        key
        for key in keys
        if key in CASES or SCENARIOS[key].function.__module__.startswith("backbay_conformance.")
    ]


def in_breadth(planned: Sequence[Item]) -> list[Item]:
    """The first turn of everything, then the second of everything, and so on."""
    return sorted(planned, key=lambda item: item.turn)


def detect(
    name: str, size: str = "default", seed: int = 0, *, rivals: bool = True, budget: float = 600.0
) -> Detection:
    """Try a fault's backend until something notices it, all items of a size are done, or the time is over."""
    fault = FAULTS[name]
    planned = in_breadth(items(own(select(PROFILES if size == "nightly" else STANDARD)), size))
    found = _search(fault, planned, seed, budget)
    if not rivals:
        return found
    seen = _rivals(fault, in_breadth(items(own(select()), "smoke")), seed)
    return Detection(**{**found.as_dict(), "nmse": bool(seen.nmse), "tolerance": bool(seen.tolerance)})


def _search(fault: PlantedFault, planned: Sequence[Item], seed: int, budget: float) -> Detection:
    lab = lab_for(fault.plant(reference()))
    started, count = time.monotonic(), 0
    facts = (fault.name, fault.kind, fault.like)
    try:
        for count, item in enumerate(planned, 1):
            outcome = run_item(lab, item, seed)
            elapsed = time.monotonic() - started
            if outcome.failed:
                message = outcome.message.partition("\n")[0]
                return Detection(*facts, True, count, elapsed, outcome.check, outcome.item, message)
            if elapsed > budget:
                break
        return Detection(*facts, False, count, time.monotonic() - started)
    finally:
        lab.discard()


def _rivals(fault: PlantedFault, planned: Sequence[Item], seed: int) -> Noticed:
    """Faults of kernels show only in calls of their ops."""
    ops = {op.name for op in fault.of if not isinstance(op, str)}
    kernels_only = ops and not any(isinstance(op, str) for op in fault.of)
    wrong, right = lab_for(fault.plant(reference())), lab_for(reference())
    try:
        return noticed(wrong, right, [i for i in planned if not kernels_only or i.name in ops], seed)
    finally:
        wrong.discard()
        right.discard()
