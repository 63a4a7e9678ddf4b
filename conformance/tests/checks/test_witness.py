"""The witness computes each judged call beside the backend under test, and tells who is wrong."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import conform

from backbay import BackendUnavailableError
from backbay_conformance import CASES, Call, Draw, Report, run
from backbay_conformance.report.terminal import show


def tried(backend: str, **more: Any) -> Report:
    return run(backend, ["core"], ops=["tanh", "neg"], size="smoke", **more)


def shown(report: Report) -> str:
    text = io.StringIO()
    show(report, text)
    return text.getvalue()


def test_each_judged_call_also_runs_on_the_reference() -> None:
    report = tried("broken_backends:Plain")
    assert report.ok
    assert report.as_dict()["against"] == {"backend": "cpu_ref", "compared": 18, "differing": 0}
    assert "18 calls against cpu_ref: 0 differ\n" in shown(report)


@pytest.mark.parametrize(
    ("backend", "against"), [("cpu_ref", ""), ("cpu_ref", "cpu_ref"), ("broken_backends:Plain", "none")]
)
def test_nothing_is_compared_with_the_backend_itself_or_with_none(backend: str, against: str) -> None:
    report = tried(backend, against=against)
    assert report.as_dict()["against"] is None
    assert "against" not in shown(report)


@pytest.mark.fault("the reference is wrong", "the report names it, and the backend under test passes")
def test_a_wrong_reference_is_told_from_the_backend(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    words = ("--size", "smoke", "--op", "tanh", "--against", "broken_backends:Imprecise")
    assert conform("cpu_ref", *words, "--json", str(file)) == 0
    report = json.loads(file.read_text())
    assert report["ok"] and report["against"]["differing"] > 0
    text = shown(tried("cpu_ref", against="broken_backends:Imprecise"))
    assert "  broken_backends:Imprecise is wrong, cpu_ref is not: tanh(f32" in text
    assert "* broken_backends:Imprecise is wrong" in text


@pytest.mark.fault(
    "a formula of the suite is wrong", "each failure says that the reference agrees with the backend"
)
def test_a_wrong_formula_is_told_from_a_wrong_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "cpu_ref agrees with the formula: the backend is wrong"
    assert all(told in outcome.message for outcome in tried("broken_backends:Imprecise").failures)
    case = CASES["core", "tanh"]

    def wrong(draw: Draw) -> Call:
        call = case.function(draw)
        return replace(call, formula=lambda x: x.tanh() * 1.25)

    monkeypatch.setitem(CASES, ("core", "tanh"), replace(case, function=wrong))
    failures = tried("broken_backends:Plain").failures
    assert failures
    told = "cpu_ref agrees with the backend: the formula is wrong"
    assert all(told in outcome.message for outcome in failures)


def test_a_witness_that_does_not_run_an_op_is_no_fault() -> None:
    report = tried("cpu_ref", against="broken_backends:Without")
    assert report.ok
    assert report.witnessed == {"compared": 9, "differing": 0}


def test_a_witness_that_cannot_be_opened_ends_the_run_at_once() -> None:
    with pytest.raises(
        BackendUnavailableError, match="the witness, 'broken_backends:Shut', cannot be opened"
    ):
        tried("cpu_ref", against="broken_backends:Shut", in_process=False)


def test_a_witness_of_less_precision_is_judged_by_its_own() -> None:
    """Some data are beyond the range of its activations, f16, and are not compared."""
    report = run("cpu_ref", ["core"], ops=["mulmat"], size="smoke", against="broken_backends:Halves")
    assert report.ok
    assert report.witnessed["differing"] == 0 < report.witnessed["compared"] < report.counts["passed"]
