"""Sums of data that are drawn to be exact: to the bit, unless large codes outgrow what sums in f16 hold."""

from __future__ import annotations

import numpy as np
import pytest

import backbay
from backbay import DType, Precision, ops
from backbay.internals import Array
from backbay_conformance.checks.judgement import cost_of, judge
from backbay_conformance.checks.traced_call import TracedCall
from backbay_conformance.draw.layout import Layout
from backbay_conformance.draw.operand import Operand
from backbay_conformance.fault import Fault
from backbay_conformance.numbers.encoding import encode
from backbay_conformance.suite.case import Call, call_of

IN_BLOCKS = Precision(DType.Q8_0, DType.F16)
IN_HALVES = Precision(DType.F16, DType.F16)
SINGLE = Precision(DType.F32, DType.F32)
WEIGHTS = np.full((1, 32), 6.0)
CODES = np.full((1, 32), 8.0)
CODES[0, ::16] = 127  # as data for activations of q8_0 have


def operand(data: Array) -> Operand:
    shape = data.shape[::-1]
    raw = encode(data, DType.F32)
    made = Operand(DType.F32, shape, lambda making, operand: raw, Layout(), 0)
    made.hold(raw)
    return made


def judged(result: float, precision: Precision) -> None:
    with backbay.open(None, backend="cpu_ref") as backend:
        call = call_of(ops.mulmat, (operand(WEIGHTS), operand(CODES)), backend.cache_config())
        assert isinstance(call, Call)
        call.exact = True
        traced = TracedCall(backend, call)
        judge(
            call,
            traced,
            [encode(np.array([[result]]), DType.F32)],
            cost_of(call, traced.level, precision),
            "exact",
        )
        traced.close()


RIGHT = float(WEIGHTS[0] @ CODES[0])


@pytest.mark.parametrize("precision", [IN_BLOCKS, IN_HALVES, SINGLE])
def test_the_sum_is_right(precision: Precision) -> None:
    judged(RIGHT, precision)


def test_sums_in_f16_of_large_codes_may_be_rounded() -> None:
    judged(RIGHT + 2, IN_BLOCKS)
    with pytest.raises(Fault):
        judged(RIGHT * 2, IN_BLOCKS)


@pytest.mark.parametrize("precision", [IN_HALVES, SINGLE])
def test_other_sums_may_not(precision: Precision) -> None:
    with pytest.raises(Fault):
        judged(RIGHT + 2, precision)
