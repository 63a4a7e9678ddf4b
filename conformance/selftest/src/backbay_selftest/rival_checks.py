"""Rival checks against the reference: a normalized mean squared error, and a wide tolerance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from backbay import Backend
from backbay_conformance.checks.traced_call import TracedCall, make
from backbay_conformance.draw.data import Mode
from backbay_conformance.draw.draw import Draw
from backbay_conformance.numbers.encoding import Array, decode
from backbay_conformance.runner.selection import Item
from backbay_conformance.suite.case import CASES, Call
from backbay_conformance.suite.lab import Lab

LOOSE = ("mulmat", "conv", "scaled_dot_product_attention")
"""Beginnings of the ops for which test-backend-ops allows a normalized mean squared error of 5e-4, not 1e-7."""


@dataclass
class Noticed:
    """The item at which each rival noticed a fault; empty for none."""

    nmse: str = ""
    tolerance: str = ""

    @property
    def done(self) -> bool:
        return bool(self.nmse and self.tolerance)


def noticed(wrong: Lab, right: Lab, items: Iterable[Item], seed: int) -> Noticed:
    """The first items at which the rivals notice a fault; they do not run scenarios."""
    found = Noticed()
    for item in items:
        if (item.profile, item.name) in CASES and not found.done:
            _look(wrong, right, item, seed, found)
    return found


def _look(wrong: Lab, right: Lab, item: Item, seed: int, found: Noticed) -> None:
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
