"""Calls that a backend refuses when it compiles: they are counted and shown, and never pass in silence."""

from __future__ import annotations

import io

import pytest

from backbay_conformance import Report, run
from backbay_conformance.report.certificate import certificate, refusals
from backbay_conformance.report.html import page
from backbay_conformance.report.report import TableCell
from backbay_conformance.report.terminal import show


def tried(name: str, *ops: str) -> Report:
    return run(f"broken_backends:{name}", ["core", "errors"], ops=ops, size="smoke")


def cell(report: Report, op: str, dtype: str = "f32") -> TableCell:
    return report.cells["core", op, dtype]


def test_a_refused_call_is_unsupported_and_listed_with_dtype_shapes_and_reason() -> None:
    report = tried("Refusing", "tanh", "neg")
    found = cell(report, "tanh")
    assert report.ok
    assert (found.state, cell(report, "neg").state) == ("partial", "full")
    assert found.passed
    assert found.refused == found.unsupported > 0
    assert {(each.name, each.reason) for each in report.refusals} == {("tanh", "no tanh of this shape")}
    assert all(each.kind.startswith(f"tanh {each.dtype}[") for each in report.refusals)


def test_every_report_shows_the_share_of_refused_calls() -> None:
    report = tried("Refusing", "tanh", "neg")
    count = report.refusals.total()
    share = count / report.tried
    written = certificate(report, {})["refusals"]
    assert written["share"] == round(share, 4) > 0
    assert sum(each["calls"] for each in written["calls"]) == count
    told = io.StringIO()
    show(report, told)
    assert f"{count} calls refused when they were compiled, {share:.1%} of all" in told.getvalue()
    assert f"{share:.1%} of all calls were refused" in page(report)


def test_a_backend_that_refuses_everything_proves_nothing() -> None:
    report = tried("RefusesAll", "tanh", "neg", "wrong_data_are_refused")
    assert report.counts["passed"] == 1  # the scenario, which runs no op
    assert (report.ok, report.verdict) == (False, "nothing passed")
    assert "nothing passed" in refusals(report)
    assert {cell.state for cell in report.cells.values() if cell.dtype} == {"unsupported"}


def test_an_op_of_which_every_call_is_refused_is_unsupported() -> None:
    assert cell(tried("RefusesTanh", "tanh", "neg"), "tanh").state == "unsupported"


def test_a_scenario_that_needs_a_refused_call_is_refused_too() -> None:
    report = run("broken_backends:RefusesAll", ["graph"], ops=["composites"], size="smoke")
    assert {each.name for each in report.refusals} == {"composites"}
    assert not report.counts["failed"]


def test_a_composite_in_the_place_of_a_refused_op_is_judged_and_counted() -> None:
    report = tried("Composes", "silu")
    found = cell(report, "silu")
    assert report.ok
    assert (found.state, found.levels, found.unsupported) == ("partial", {"kernel", "composite"}, 0)
    assert report.refusals.total() == sum(each.refused for each in report.cells.values()) > 0


def test_a_wrong_composite_in_the_place_of_a_refused_op_fails() -> None:
    assert cell(tried("ComposesWrongly", "silu"), "silu").state == "failing"


@pytest.mark.parametrize(("name", "check"), [("RefusesLater", "raised"), ("WritesAndRefuses", "storage")])
def test_a_refusal_in_the_midst_of_runs_is_a_fault(name: str, check: str) -> None:
    report = tried(name, "tanh")
    assert check in {outcome.check for outcome in report.failures}
