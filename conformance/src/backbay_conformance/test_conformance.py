"""Collected by pytest: a test for each case and scenario, on the backend of `--backbay-backend`."""

from __future__ import annotations

import io

import pytest

from .report.terminal import show_failures
from .runner.selection import items
from .runner.workers.supervisor import WorkerSupervisor


def test_conformance(
    backbay_case: tuple[str, str], backbay_pool: WorkerSupervisor, pytestconfig: pytest.Config
) -> None:
    """Each call of the case or scenario passes, or is declared unsupported."""
    planned = items([backbay_case], str(pytestconfig.getoption("--backbay-size")))
    outcomes = backbay_pool.run(planned)
    failed = [outcome for outcome in outcomes if outcome.failed]
    if failed:
        text = io.StringIO()
        show_failures(failed, text)
        told = f"{len(failed)} of {len(outcomes)} calls failed, seed {backbay_pool.settings.seed}"
        pytest.fail(f"{told}\n{text.getvalue()}", pytrace=False)
    if all(outcome.status == "unsupported" for outcome in outcomes):
        pytest.skip("the backend declares that it does not run this")
