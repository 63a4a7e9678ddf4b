"""The share of elements that comparisons really judge, and bounds that are as tight as they can be."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import DType
from backbay_conformance import Number, Outcome, Report, run
from backbay_conformance.numbers.comparison import ENOUGH, compare, measured
from backbay_conformance.numbers.number import Cost, block_error
from backbay_conformance.report.html import page
from backbay_conformance.report.terminal import tightness

EXACT = Cost(0.0, 0.0)


def share(values: object, error: object, free: np.ndarray | None = None) -> list[int]:
    expected = Number(np.asarray(values, np.float64), np.asarray(error, np.float64), EXACT)
    with measured() as found:
        got = np.asarray(values, np.float32)
        compare(expected, got, DType.F32, exact=False, free=free, instead=(0.0,))
    return found["result"]


def test_an_element_is_tight_if_its_bound_is_below_a_tenth_of_its_scale() -> None:
    assert share([10.0, 10.0, 10.0], [0.5, 2.0, np.inf]) == [1, 3]
    assert share([10.0, 10.0, 0.0], [0.5, 0.5, 0.5]) == [3, 3]  # the last is a difference of larger terms
    assert share([np.inf, np.nan, 5.0], 0.0) == [3, 3]
    assert share([0.0, 0.0], 1e-9) == [2, 2]


def test_an_element_that_is_left_open_is_not_tight() -> None:
    assert share([0.0, 5.0], 0.0, np.array([True, False])) == [1, 2]


def test_the_report_shows_the_checks_that_judge_too_few_elements() -> None:
    report = Report("some", 0, "smoke", ("core",))
    report.add(Outcome("core/add/0", dtype="f32", tight={"result": [9, 10], "parts": [1, 10]}))
    report.add(Outcome("core/add/1", dtype="f16", tight={"result": [10, 10]}))
    assert report.as_dict()["tightness"] == {"core/add": {"result": 0.95, "parts": 0.1}}
    assert tightness(report)[1:] == ["   10% core/add parts"]
    assert '<td class="loose">10%</td>' in page(report)


def test_a_masked_position_does_not_free_the_row() -> None:
    """The exponential of minus infinity is 0, without an error."""
    x = Number(np.array([-np.inf, 1.0, 2.0]), 0.0, Cost(1e-7, 1e-7))
    powers = x.exp()
    assert np.isfinite(powers.error).all()
    assert np.isfinite((powers / powers.sum()).error).all()


def test_the_error_of_an_average_is_at_most_the_range_of_its_values() -> None:
    mean = Number(np.array([[2.0]]), np.inf, EXACT)
    assert mean.within(np.array([[0.75]]), np.array([[3.25]]), 3).error == pytest.approx(1.25, rel=1e-6)


@pytest.mark.parametrize("kind", [DType.Q4_0, DType.Q5_0])
def test_a_block_is_off_by_half_a_step_but_for_its_far_end(kind: DType) -> None:
    from backbay.internals import dequantize, quantize

    rows = np.random.default_rng(7).uniform(-1, 1, (400, 32)).astype(np.float32)
    off = np.abs(dequantize(quantize(rows, kind), kind).reshape(rows.shape) - rows)
    bound = block_error(rows.astype(np.float64), kind)
    assert (off <= bound).all()
    assert np.median(bound / np.abs(rows).max(-1, keepdims=True)) < 0.08


@pytest.mark.parametrize("profile", ["attention", "core"])
@pytest.mark.thorough
def test_no_check_of_the_reference_judges_few_elements(profile: str) -> None:
    ops = None if profile == "attention" else ["softmax", "mulmat", "stddev", "sum_rows"]
    for row in run("cpu_ref", [profile], ops=ops).tightness.values():
        assert min(row.values()) >= ENOUGH
