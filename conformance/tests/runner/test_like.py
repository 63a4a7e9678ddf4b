"""`--like MODEL`: the very calls that a model makes are tried, and the report says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import conform

from backbay import BackbayError
from backbay_conformance import Report, SelectionError, run
from backbay_conformance.report.certificate import certificate
from backbay_conformance.report.html import page

MODEL = Path(__file__).parents[3] / "examples/models/backbay-tiny-f16.gguf"


@pytest.fixture(scope="module")
def report() -> Report:
    return run("cpu_ref", ["core", "like"], ops=["mulmat", "rope", "set_rows"], size="smoke", like=MODEL)


def test_the_calls_of_a_model_are_tried(report: Report) -> None:
    assert report.ok
    tried = {name for profile, name, _ in report.cells if profile == "like"}
    assert tried == {"mulmat", "rope", "set_rows"}
    assert report.like is not None
    assert report.like.calls > 10
    assert any(kind.startswith("mulmat f16[") for kind in report.like.kinds)


def test_reports_and_certificates_name_the_model(report: Report) -> None:
    told = certificate(report, {})["like"]
    assert told["model"] == MODEL.name
    assert told["calls"] == report.like.calls if report.like else False
    assert set(told["not_drawn"]) <= set(told["kinds"])
    assert MODEL.name in page(report)


@pytest.mark.thorough
def test_a_fault_at_a_size_of_the_model_alone_is_caught_and_replayed(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    chosen = ("--op", "mulmat", "--size", "smoke", "--jobs", "1", "--failures", str(failures))
    backend = "broken_backends:WrongAt384"
    assert conform(backend, *chosen) == 0
    assert conform(backend, *chosen, "--like", str(MODEL), "--profile", "like") == 1
    one = min(failures.iterdir())
    assert json.loads(one.read_text())["like"] == str(MODEL)
    assert conform("--repro", str(one)) == 1
    assert conform("cpu_ref", "--repro", str(one)) == 0


def test_a_run_like_a_model_needs_the_model() -> None:
    with pytest.raises(SelectionError, match="give --like MODEL"):
        run("cpu_ref", ["like"])
    with pytest.raises(SelectionError, match="there is no file"):
        run("cpu_ref", like="no_such.gguf")


def test_without_a_package_that_knows_models_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backbay_conformance.workloads.model_calls.PROVIDERS", [])
    with pytest.raises(BackbayError, match=r"pip install \./apps/engine"):
        run("cpu_ref", ["like"], like=MODEL)
