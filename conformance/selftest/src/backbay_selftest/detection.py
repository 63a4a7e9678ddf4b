"""The search for a fault: the check that notices it, and the items and seconds until then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    """The result of one fault; `seconds` count the trial alone."""

    fault: str
    kind: str
    caught: bool
    items: int
    seconds: float
    check: str = ""
    item: str = ""
    message: str = ""
    nmse: bool | None = None
    tolerance: bool | None = None


def own(keys: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The suite's own cases and scenarios, without those of other distributions."""
    suite = "backbay_conformance."
    return [key for key in keys if key in CASES or SCENARIOS[key].function.__module__.startswith(suite)]


def in_breadth(planned: Sequence[Item]) -> list[Item]:
    """The first turn of every item, then the second, and so on."""
    return sorted(planned, key=lambda item: item.turn)


def detect(
    name: str, size: str = "default", seed: int = 0, *, rivals: bool = True, budget: float = 600.0
) -> Detection:
    """Run items on a fault's backend until a check notices the fault, the items end, or the budget is spent."""
    fault = FAULTS[name]
    profiles = PROFILES if size == "nightly" or fault.large else STANDARD
    planned = in_breadth(items(own(select(profiles)), size))
    found = _search(fault, planned, seed, budget)
    if not rivals:
        return found
    seen = _rivals(fault, in_breadth(items(own(select()), "smoke")), seed)
    return replace(found, nmse=bool(seen.nmse), tolerance=bool(seen.tolerance))


def _search(fault: PlantedFault, planned: Sequence[Item], seed: int, budget: float) -> Detection:
    lab = lab_for(fault.plant(reference()))
    started, count = time.monotonic(), 0
    facts = fault.name, fault.kind
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
    """The rivals' findings; a fault of kernels is sought only in calls of their ops."""
    ops = {op if isinstance(op, str) else op.name for op in fault.of}
    kernels_only = fault.of and not any(isinstance(op, str) for op in fault.of)
    wrong, right = lab_for(fault.plant(reference())), lab_for(reference())
    try:
        return noticed(wrong, right, [i for i in planned if not kernels_only or i.name in ops], seed)
    finally:
        wrong.discard()
        right.discard()
