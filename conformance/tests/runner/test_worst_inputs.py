"""A hunt drives calls to the worst inputs of an op, and reports them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import conform

from backbay import BackbayError, DType, Precision
from backbay_conformance import Report, run
from backbay_conformance.checks.traced_call import make
from backbay_conformance.draw.draw import Draw
from backbay_conformance.runner.selection import effort_of
from backbay_conformance.suite.case import CASES

CALLS, NEAR = 1000, 1e-4
PEAKED = "broken_backends:Peaked"


def worst_places(report: Report) -> float:
    return report.cells["core", "exp", "f32"].extremes["last_places"].last_places


def nearest_to_peak(draw: Draw) -> float:
    """The smallest distance of an operand of `exp` from the worst."""
    call = CASES["core", "exp"].draw(draw)
    (x,) = call.operands()
    found = []
    for variant in (0, 1):
        make(call, draw.mode, Precision(DType.F32, DType.F32), variant)
        found.append(float(np.nan_to_num(np.abs(x.decoded - 50.03), nan=np.inf).min(initial=np.inf)))
    return min(found)


@pytest.mark.thorough
def test_a_hunt_finds_a_rare_worst_input_that_as_many_draws_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html")}
    words = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    assert conform(PEAKED, "--op", "exp", "--hunt", f"{CALLS}x", "--seed", "0", *words) == 0
    cells = {cell["dtype"]: cell for cell in json.loads(files["json"].read_text())["cells"]}
    worst = cells["f32"]["extremes"]["last_places"]
    assert worst["last_places"] > 5
    x = float(worst["element"].removeprefix("exp(").partition(")")[0])
    assert abs(x - 50.03) < NEAR
    shown = capsys.readouterr().out
    assert worst["element"] in shown and worst["element"] in files["html"].read_text()
    assert f"(seed 0, hunt {CALLS}x, " in shown
    assert min(nearest_to_peak(Draw(f"{n}", n)) for n in range(CALLS)) > NEAR


def test_a_hunt_follows_from_its_seed() -> None:
    found = [
        worst_places(run(PEAKED, ops=["exp"], profiles=["core"], hunt="60x", seed=seed)) for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]


def test_a_failure_of_a_hunt_is_made_small_and_the_hunt_goes_on_with_the_next(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    words = ("--hunt", "30x", "--op", "tanh,exp", "--failures", str(failures))
    assert conform("broken_backends:Imprecise", *words) == 1
    files = [json.loads(path.read_text()) for path in failures.iterdir()]
    single = next(failed for failed in files if failed["dtype"] == "f32")
    assert "tanh(f32[1] " in single["call"] and single["script"]
    assert conform("--trust", "--repro", str(next(failures.iterdir()))) == 1
    assert conform("cpu_ref", "--repro", str(next(failures.iterdir()))) == 0


def test_a_failure_of_a_hunt_is_kept_for_the_next_run() -> None:
    tanh = {"profiles": ["core"], "ops": ["tanh"], "in_process": False}
    found = run("broken_backends:Imprecise", hunt="5x", **tanh)
    (again,) = [
        outcome
        for outcome in run("broken_backends:Imprecise", size="smoke", **tanh).failures
        if outcome.again
    ]
    assert again.item == "core/tanh/again"
    assert again.call in [outcome.call for outcome in found.failures]


@pytest.mark.thorough
def test_a_crash_ends_the_hunt_of_one_op_and_dtype() -> None:
    report = run("broken_backends:Exits", ops=["tanh", "exp"], hunt="5x", in_process=False)
    assert [outcome.check for outcome in report.failures] == ["crash"] * 3
    assert report.cells["core", "exp", "f32"].extremes["share"].share > 0


def test_a_time_is_shared_by_all_ops_and_dtypes() -> None:
    assert effort_of("2m").shared(6, jobs=2).seconds == 40
    assert effort_of("1h").shared(1, jobs=2).seconds == 3600
    assert effort_of("500x").shared(6, jobs=2).calls == 500


def test_ops_without_bounds_are_left_out() -> None:
    report = run(PEAKED, ops=["exp", "neg"], profiles=["core"], hunt="1x")
    assert {cell.name for cell in report.cells.values()} == {"exp"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("10",), "a hunt takes a time, as 90s, 10m or 1h, or calls, as 500x, not '10'"),
        (("0x",), "not '0x'"),
        (("5x", "--op", "neg"), "no selected op has a result with an error bound"),
    ],
)
def test_a_hunt_that_cannot_be_is_an_error(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(BackbayError, match=told):
        conform("cpu_ref", "--hunt", *words)
