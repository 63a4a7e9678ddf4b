"""The search for a fault: the check that notices it, the items and seconds until then, and whether rival checks notice it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from backbay import Backend
from backbay_conformance.checks.traced_call import TracedCall, make
from backbay_conformance.draw.choices import Source
from backbay_conformance.draw.data import Mode
from backbay_conformance.draw.draw import Draw
from backbay_conformance.draw.hypothesis_search import find_failure
from backbay_conformance.numbers.encoding import Array, decode
from backbay_conformance.report.report import Outcome
from backbay_conformance.runner.items.few_shapes import with_few_shapes
from backbay_conformance.runner.items.item_run import run_item
from backbay_conformance.runner.selection import Item, items, select
from backbay_conformance.suite.case import CASES, Call
from backbay_conformance.suite.lab import SCENARIOS, Lab, lab_for
from backbay_conformance.suite.profiles import PROFILES, STANDARD

from .fault import FAULTS, PlantedFault, reference

LOOSE = ("mulmat", "conv", "scaled_dot_product_attention")
"""Beginnings of the ops for which test-backend-ops allows a normalized mean squared error of 5e-4, not 1e-7."""


@dataclass
class NoticedItems:
    """The item at which each rival noticed a fault; empty for none."""

    nmse: str = ""
    tolerance: str = ""

    @property
    def done(self) -> bool:
        return bool(self.nmse and self.tolerance)


def noticed(wrong: Lab, right: Lab, items: Iterable[Item], seed: int) -> NoticedItems:
    """The first items at which the rivals notice a fault; they do not run scenarios."""
    found = NoticedItems()
    for item in items:
        if (item.profile, item.name) in CASES and not found.done:
            _look(wrong, right, item, seed, found)
    return found


def _look(wrong: Lab, right: Lab, item: Item, seed: int, found: NoticedItems) -> None:
    draw = Draw(item.seed(seed), item.turn)
    case, mode = CASES[item.profile, item.name], draw.mode
    call = case.draw(draw)
    try:
        want = results(right.backend, call, mode)
    except Exception:  # noqa: BLE001 - the reference does not run it, so there is nothing to compare with
        return
    try:
        got = results(wrong.backend, call, mode)
    except Exception:  # noqa: BLE001 - whatever it raises is noticed by anybody
        wrong.discard()
        found.nmse, found.tolerance = found.nmse or str(item), found.tolerance or str(item)
        return
    limit = 5e-4 if item.name.startswith(LOOSE) else 1e-7
    for a, b in zip(got, want, strict=True):
        if not found.nmse and not passes_nmse(a, b, limit):
            found.nmse = str(item)
        if not found.tolerance and not passes_tolerance(a, b):
            found.tolerance = str(item)


def results(backend: Backend, call: Call, mode: Mode) -> list[Array]:
    """The results of one run of a call, as numbers."""
    traced = TracedCall(backend, call)
    try:
        make(call, mode, traced.precision, 0)
        traced.write()
        stored = zip(traced.run(), traced.results, strict=True)
        return [decode(y, t.dtype).astype(np.float64) for y, t in stored]
    finally:
        traced.close()


def passes_nmse(got: Array, want: Array, limit: float) -> bool:
    """As test-backend-ops compares: equal infinities, and the squared errors against the squared numbers.

    test-backend-ops refuses every NaN; here NaN may meet NaN, or correct backends would fail.
    """
    odd = ~np.isfinite(want)
    if not np.array_equal(got[odd], want[odd], equal_nan=True) or not np.isfinite(got[~odd]).all():
        return False
    with np.errstate(all="ignore"):
        error, size = ((got - want)[~odd] ** 2).sum(), (want[~odd] ** 2).sum()
        return bool(error == 0 or error / size <= limit)


def passes_tolerance(got: Array, want: Array) -> bool:
    """As array-api-tests compares by default: within a quarter of the value, or 1."""
    with np.errstate(all="ignore"):
        return bool(np.isclose(got, want, rtol=0.25, atol=1, equal_nan=True).all())


@dataclass(frozen=True)
class Detection:
    """The result of one fault; `seconds` are those of a processor, for the trial alone."""

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
    """One item of each profile in turn; of a profile, the first turn of every item, then the second, and so on."""
    before = Counter[str]()
    places: dict[Item, int] = {}
    for item in sorted(planned, key=lambda item: item.turn):
        places[item] = before[item.profile]
        before[item.profile] += 1
    return sorted(places, key=places.__getitem__)


def nearest_first(fault: PlantedFault, planned: Sequence[Item]) -> list[Item]:
    """The items of the ops whose kernels are wrong, then all others: most faults show at once, and an order hides none."""
    ops = fault.kernels
    return sorted(planned, key=lambda item: item.name not in ops)


def detect(
    name: str,
    size: str = "default",
    seed: int = 0,
    *,
    few_shapes: bool = False,
    rivals: bool = True,
    budget: float = 600.0,
) -> Detection:
    """Run items on a fault's backend until a check notices the fault, the items end, or the budget of processor time is spent."""
    fault = FAULTS[name]
    profiles = PROFILES if size == "nightly" or fault.large else STANDARD
    planned = in_breadth(items(own(select(profiles)), size))
    planned = with_few_shapes(planned, seed) if few_shapes else planned
    found = _search(fault, nearest_first(fault, planned), seed, budget)
    if not rivals:
        return found
    seen = _rivals(fault, in_breadth(items(own(select()), "smoke")), seed)
    return replace(found, nmse=bool(seen.nmse), tolerance=bool(seen.tolerance))


def drawn(lab: Lab, item: Item, seed: int) -> Outcome:
    """The outcome of an item that Hypothesis draws."""
    outcomes: list[Outcome] = []

    def example(source: Source, new: bool) -> bool:
        outcomes.append(run_item(lab, item, source))
        return False

    find_failure(example, 1, item.seed(seed), seconds=0)
    return outcomes[0]


def _search(fault: PlantedFault, planned: Sequence[Item], seed: int, budget: float) -> Detection:
    lab = lab_for(fault.plant(reference()))
    started, count = time.process_time(), 0
    facts = fault.name, fault.kind
    try:
        for count, item in enumerate(planned, 1):
            outcome = drawn(lab, item, seed)
            elapsed = time.process_time() - started
            if outcome.failed:
                message = outcome.message.partition("\n")[0]
                return Detection(*facts, True, count, elapsed, outcome.check, outcome.item, message)
            if elapsed > budget:
                break
        return Detection(*facts, False, count, time.process_time() - started)
    finally:
        lab.discard()


def _rivals(fault: PlantedFault, planned: Sequence[Item], seed: int) -> NoticedItems:
    """The rivals' findings; a fault of kernels is sought only in calls of their ops."""
    ops = fault.kernels
    kernels_only = len(ops) == len(fault.of) > 0
    wrong, right = lab_for(fault.plant(reference())), lab_for(reference())
    try:
        return noticed(wrong, right, [i for i in planned if not kernels_only or i.name in ops], seed)
    finally:
        wrong.discard()
        right.discard()
