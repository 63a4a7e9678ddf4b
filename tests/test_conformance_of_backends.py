"""Every installed backend keeps the contract, as far as the small size of the suite can tell."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import backbay

SELDOM = "thread_counts", "vocabularies", "a_large_weight_is_read_to_its_end", "a_file_is_read_as_it_is_now"


@pytest.mark.parametrize("name", sorted(backbay.backends()))
def test_a_backend_keeps_the_contract(name, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "backbay", "conform", name, "--size", "smoke", "--json", report]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert json.loads(report.read_text())["counts"]["passed"] > 500


@pytest.mark.thorough
def test_each_turn_of_scenarios_that_take_turns_is_drawn():
    """A small size draws one turn of these, or none."""
    command = [sys.executable, "-m", "backbay", "conform", "cpu_ref", "--op", ",".join(SELDOM)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
