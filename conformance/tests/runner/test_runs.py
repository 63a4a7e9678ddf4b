"""Whole runs: what passes, what each kind of fault is reported as, and that nothing ends a run early."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from backbay import BackbayError, BackendUnavailableError, Level
from backbay_conformance import CASES, Draw, Report, lab_for, run
from backbay_conformance.checks.call_check import try_call
from backbay_conformance.checks.relations import RELATIONS
from backbay_conformance.report.known_failures import read_known_failures
from backbay_conformance.runner.selection import Item, RunSettings
from backbay_conformance.runner.workers import supervisor


def tried(name: str, **more: object) -> Report:
    chosen = {"ops": ["tanh", "neg"], "size": "smoke", "timeout": 60.0, **more}
    return run(f"broken_backends:{name}", in_process=False, **chosen)  # type: ignore[arg-type]


@pytest.mark.thorough
def test_a_backend_is_given_the_time_of_its_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "STARTING", 4.0)
    with pytest.raises(BackendUnavailableError, match="no answer within 4 s"):
        tried("StartsSlowly", ops=["neg"], size="tiny")
    caplog.clear()
    assert tried("TriesAtFirst", ops=["neg"], size="tiny").ok
    assert "trying the device, once" in caplog.text


@pytest.mark.thorough
def test_the_reference_passes_what_is_quick() -> None:
    report = run("cpu_ref", ["core", "errors"], size="smoke")
    assert report.ok, [outcome.as_dict() for outcome in report.failures][:3]
    assert report.states["failing"] == 0
    assert report.counts["passed"] > 500


@pytest.mark.parametrize(
    ("name", "runs"), [("Three", {"add", "neg", "mulmat"}), ("WithoutCopies", {"add", "rows"})]
)
@pytest.mark.parametrize("size", ["tiny", pytest.param("smoke", marks=pytest.mark.thorough)])
def test_a_backend_with_few_kernels_keeps_the_contract(name: str, runs: set[str], size: str) -> None:
    report = run(f"broken_backends:{name}", size=size)
    assert report.ok, [outcome.as_dict() for outcome in report.failures][:3]
    for (_, op, dtype), cell in report.cells.items():
        assert not dtype or cell.passed or cell.why_not
        assert op not in runs or cell.state == "full"
    lacking = next(cell for cell in report.cells.values() if cell.name == "contiguous")
    assert (lacking.state, lacking.why_not) == ("unsupported", "it has no kernel, and there is no composite")


def test_every_check_comes_up_even_in_a_quick_run() -> None:
    report = run("cpu_ref", ops=["softmax", "mulmat", "rms_norm", "add"], size="smoke")
    noted = {check for cell in report.cells.values() for check in cell.checks}
    assert noted == {"result", "repeat", "replay", *RELATIONS}


def test_a_small_error_fails_and_is_made_small() -> None:
    report = tried("Imprecise")
    assert not report.ok
    assert {outcome.name for outcome in report.failures} == {"tanh"}
    shown = [outcome for outcome in report.failures if outcome.script]
    smallest = min(shown, key=lambda outcome: len(outcome.choices))
    done = subprocess.run(
        [sys.executable, "-c", smallest.script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "expected" in done.stdout


@pytest.mark.parametrize(
    ("name", "check"), [("Exits", "crash"), ("Raises", "raised"), ("Liar", "over-claimed")]
)
@pytest.mark.few(1)
def test_a_fault_in_one_op_leaves_the_others(name: str, check: str) -> None:
    report = tried(name)
    assert {outcome.check for outcome in report.failures} == {check}
    assert all(outcome.call for outcome in report.failures)
    neg = [cell for cell in report.cells.values() if cell.name == "neg"]
    assert all(cell.state == "full" for cell in neg)
    assert sum(cell.passed for cell in neg) == 9


def test_a_hit_of_a_guard_zone_is_told_by_its_class() -> None:
    assert {outcome.check for outcome in tried("WritesBehind").failures} == {"guards"}


def test_a_backend_that_refuses_when_it_runs_is_over_claimed() -> None:
    report = tried("RefusesLate", profiles=["core"], ops=["rms_norm"])
    assert {outcome.check for outcome in report.failures} == {"over-claimed"}
    assert report.counts["unsupported"] == 0


@pytest.mark.thorough
def test_a_hang_is_one_failed_call_and_costs_its_timeout_once() -> None:
    """The first hang takes the whole timeout, two more take less, no smaller call is sought, and the rest is left out."""
    report = tried("Hangs", timeout=10.0, ops=["tanh"])
    assert {outcome.check for outcome in report.failures} == {"hang"}
    limits = [outcome.message.partition("within ")[2] for outcome in report.failures]
    assert limits == ["10 s", "1 s", "1 s"]


@pytest.mark.thorough
def test_a_hang_of_one_op_leaves_the_limit_of_others() -> None:
    report = tried("Hangs", timeout=2.0)
    assert {outcome.check for outcome in report.failures} == {"hang"}
    assert report.counts["passed"] == 9


def test_workers_that_die_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report = tried("Litters", profiles=["core"], ops=["tanh", "backend_life"])
    assert {outcome.check for outcome in report.failures} == {"crash"}
    assert list(tmp_path.iterdir()) == []


def test_a_composite_is_not_held_against_the_kernel() -> None:
    """What is wrong with one op shows in the composites made of it, and those name it; their kernels are right."""
    report = tried("Coarse", ops=["softmax", "mul", "rms_norm", "stddev", "composites"])
    states = {cell.name: cell.state for cell in report.cells.values()}
    assert states == {"softmax": "full", "rms_norm": "full", "stddev": "full", "mul": "failing"} | {
        "composites": "failing"
    }
    told = {
        outcome.message.rpartition("; ")[2] for outcome in report.failures if outcome.name == "composites"
    }
    assert told == {"wrong by themselves: mul"}


def test_what_a_scenario_needs_and_a_backend_lacks_is_unsupported() -> None:
    report = tried("WithoutSoftmax", profiles=["core", "graph"], ops=["softmax", "neg", "scores_and_values"])
    assert report.ok, report.failures[:1]
    states = {cell.name: cell.state for cell in report.cells.values()}
    assert states == {"softmax": "unsupported", "scores_and_values": "unsupported", "neg": "full"}


def test_what_is_declared_missing_is_unsupported() -> None:
    report = tried("Without")
    assert report.ok
    assert report.states["unsupported"] == 3


def test_a_dtype_that_is_an_attribute_may_be_refused_by_the_error_alone() -> None:
    report = tried("Narrow", ops=["cast"], profiles=["quant"])
    assert report.ok, report.failures[:1]
    assert report.counts["unsupported"] > 0


@pytest.mark.thorough
def test_a_crash_is_made_smaller() -> None:
    settings = RunSettings("broken_backends:Exits", 0, shrink=600.0)  # as long as it takes
    with closing(supervisor.WorkerSupervisor(settings)) as pool:
        (first,) = pool.run([Item("core", "tanh", 1)])
    assert (first.check, first.call) == ("crash", "tanh(f32[1] contiguous)")


def test_a_backend_that_can_do_more_than_it_says_is_reported() -> None:
    assert {outcome.check for outcome in tried("Modest").failures} == {"under-claimed"}


def test_an_empty_result_proves_no_support() -> None:
    from broken_backends import Modest

    drawn = [CASES["core", "tanh"].draw(Draw(f"empty/{turn}", turn)) for turn in range(200)]
    empty = [call for call in drawn if 0 in call.args[0].shape]
    assert empty
    for call in empty:
        assert try_call(lab_for(Modest), call, "wide").level is Level.NONE


def test_a_backend_that_cannot_be_opened_is_an_error() -> None:
    with pytest.raises(BackendUnavailableError, match="no_such_module"):
        run("no_such_module:X", ops=["neg"], in_process=False)


def test_known_failures_do_not_count_but_must_happen(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("# ours\ncore/tanh/*/* a table of ours is coarse https://example.org/1\n")
    excused = tried("Imprecise", known=read_known_failures(file))
    file.write_text("core/tanh/*/* a table of ours is coarse shown/coarse_tanh.py\n")
    assert read_known_failures(file)[0].link == "shown/coarse_tanh.py"
    assert excused.ok and excused.counts["failed"] == 0 < excused.counts["known"]
    assert excused.verdict == "keeps the contract but for its known failures"
    assert tried("Without", known=read_known_failures(file)).ok, (
        "smoke is too small to say that a failure is gone"
    )
    report = tried("Without", ops=["tanh"], size="default", known=read_known_failures(file))
    assert not report.ok
    assert "does not fail" in report.complaints[0]
    file.write_text("core/tanhh/*/* a typing error https://example.org/1\n")
    assert "matches nothing" in tried("Without", known=read_known_failures(file)).complaints[0]
    file.write_text("core/tanh/*/* no link\n")
    with pytest.raises(BackbayError, match="expected"):
        read_known_failures(file)


def test_seeds_draw_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        [outcome.call for outcome in run("cpu_ref", ops=["add"], seed=seed, size="smoke").slowest]
        for seed in (1, 2, 1)
    ]
    assert sorted(calls[0]) == sorted(calls[2]) != sorted(calls[1])
