"""Bookings against the process: what a failure says, and what a replay that passes says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import conform

from backbay_conformance.plugin import Draw, Fault, lab_for
from backbay_conformance.scenarios.cancellation import a_cancelled_compute_is_given_back
from backbay_conformance.scenarios.process.bookings import PEAK

SCENARIO = ("--op", "the_report_agrees_with_the_process", "--size", "smoke")


@pytest.mark.skipif(not PEAK.exists(), reason="only Linux tells the largest resident memory, and forgets it")
def test_growth_is_told_stage_by_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conform("broken_backends:Hoards", *SCENARIO, "--failures", str(tmp_path)) == 1
    (path,) = tmp_path.iterdir()
    grown = {
        name: float(most)
        for name, most in re.findall(r"    (.*): at most (.*?) MiB", json.loads(path.read_text())["message"])
    }
    assert set(grown) == {
        "opened and loaded",
        *(f"context {turn} {did}" for turn in (1, 2) for did in ("filled its leaves", "computed")),
        "closed",
    }
    assert grown["context 1 computed"] - grown["context 1 filled its leaves"] > 40
    capsys.readouterr()
    assert conform("cpu_ref", "--repro", str(path)) == 0
    assert re.search(
        r"mostly weights .*: .* MiB are booked, the process grew by .* MiB", capsys.readouterr().out
    )


def test_what_a_cancelled_compute_books_for_good_is_told() -> None:
    lab, draw = lab_for("broken_backends:BooksCancelled"), Draw("cancelled")
    with pytest.raises(Fault, match="were cancelled twice, and computed"):
        a_cancelled_compute_is_given_back(lab, draw)
