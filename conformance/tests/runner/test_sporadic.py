"""The rates of sporadic faults that docs/conformance.md promises follow from counts of calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backbay_conformance import run

DOCS = Path(__file__).parents[3] / "docs/conformance.md"
ROW = re.compile(
    r"\| (?P<size>\w+) \| (?P<least>[\d,]+) \| (?P<median>[\d,]+) \| one wrong call in (?P<every>[\d,]+) "
    r"\| in (?P<half>[\d,]+) \|"
)


def rows() -> dict[str, dict[str, int]]:
    found = [match.groupdict() for match in ROW.finditer(DOCS.read_text())]
    return {row.pop("size"): {key: int(n.replace(",", "")) for key, n in row.items()} for row in found}


def missed(rate: int, calls: int) -> float:
    """The probability that a fault of one call in `rate` comes up in none of the calls."""
    return (1 - 1 / rate) ** calls


def test_the_rates_follow_from_the_counts() -> None:
    assert set(rows()) == {"smoke", "default", "nightly"}
    for row in rows().values():
        assert missed(row["every"], row["least"]) <= 0.05
        assert missed(row["half"], row["median"]) <= 0.05


@pytest.mark.thorough
def test_the_smallest_size_makes_the_calls_that_the_docs_count() -> None:
    from broken_backends import Counting

    Counting.calls.clear()
    assert run(Counting, size="smoke").ok
    counts = sorted(Counting.calls.values())
    assert counts[0] >= rows()["smoke"]["least"]
    assert counts[len(counts) // 2] >= rows()["smoke"]["median"]
