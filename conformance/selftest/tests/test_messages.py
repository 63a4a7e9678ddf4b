"""A failure's message shows the first element that differs, with both values."""

from __future__ import annotations

import re

import pytest

from backbay_conformance.plugin import lab_for
from backbay_conformance.runner.selection import Item
from backbay_selftest import FAULTS, reference
from backbay_selftest.detection import drawn

NUMBER = r"-?\d+(\.\d+)?(e-?\d+)?"


@pytest.mark.parametrize(
    ("fault", "item", "told"),
    [
        ("sums_are_added_in_an_order_of_chance", "core/mulmat", rf"at \(.*\) {NUMBER} \(0x"),
        (
            "reads_of_a_cache_do_not_wait_for_its_writes",
            "graph/reads_around_writes",
            rf"a read after \d of 2 writes: \d+ of \d+ wrong: at \(.*\) expected {NUMBER}, got {NUMBER}",
        ),
    ],
)
def test_the_first_element_that_differs_is_shown(fault: str, item: str, told: str) -> None:
    lab = lab_for(FAULTS[fault].plant(reference()))
    profile, name = item.split("/")
    failed = (drawn(lab, Item(profile, name, turn), 0) for turn in range(40))
    assert any(outcome.failed and re.search(told, outcome.message) for outcome in failed)
