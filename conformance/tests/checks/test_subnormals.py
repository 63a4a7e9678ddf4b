"""Operands below f32's normal range: a backend that declares so may read them as zeros, others may not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backbay
from backbay import DType, Op, Precision, ops
from backbay_conformance.checks.judgement import cost_of, judge
from backbay_conformance.checks.traced_call import TracedCall, coarsest
from backbay_conformance.draw.layout import Layout, LayoutStep, negated
from backbay_conformance.draw.operand import Operand
from backbay_conformance.fault import Fault
from backbay_conformance.numbers.encoding import encode
from backbay_conformance.suite.case import Call, call_of

SINGLE = Precision(DType.F32, DType.F32)
FLUSHING = Precision(DType.F32, DType.F32, flushes_subnormals=True)


def operand(value: float, dtype: DType = DType.F32, *steps: LayoutStep) -> Operand:
    layout = Layout(steps)
    made = Operand(dtype, (1,), lambda making, operand: encode(np.asarray([value]), dtype), layout, 0)
    made.hold(encode(np.asarray([value]), dtype))
    return made


def judged(op: Op[..., Any], args: tuple[Any, ...], result: float, precision: Precision) -> None:
    with backbay.open(None, backend="cpu_ref") as backend:
        call = call_of(op, args, backend.cache_config())
        assert isinstance(call, Call)
        traced = TracedCall(backend, call)
        dtype = traced.results[0].dtype
        got = [encode(np.asarray([result]), dtype)]
        judge(call, traced, got, cost_of(call, traced.level, precision), "special")
        traced.close()


CALLS = [
    (ops.mul, (np.inf, 1e-40), np.inf, np.nan),
    (ops.div, (0.0, 1e-40), 0.0, np.nan),
    (ops.sqrt, (1e-40,), 9.999973e-21, 0.0),
    (ops.sqrt, (-1e-40,), np.nan, -0.0),
    (ops.relu, (1e-40, 403.0), 4.03e-38, 0.0),
    (ops.neg, (1e-40,), -1e-40, -0.0),
]


@pytest.mark.parametrize(("op", "values", "kept", "flushed"), CALLS)
def test_both_readings_are_right_if_declared(op: Any, values: Any, kept: float, flushed: float) -> None:
    args = tuple(map(operand, values))
    args += (None,) * (op is ops.relu and len(args) < 2)
    for precision, results in ((FLUSHING, (kept, flushed)), (SINGLE, (kept,))):
        for result in results:
            judged(op, args, result, precision)
    with pytest.raises(Fault):
        judged(op, args, flushed, SINGLE)


def test_a_narrow_operand_and_an_attribute_count_too() -> None:
    small = (operand(1e-40, DType.BF16), 1e4)
    judged(ops.scale, small, 0.0, FLUSHING)
    judged(ops.scale, (operand(404.0), 1e-39), 0.0, FLUSHING)
    with pytest.raises(Fault):
        judged(ops.scale, small, 0.0, SINGLE)


@pytest.mark.parametrize("wrong", [1e-19, 2e-20, np.nan, 1.0])
def test_nothing_else_is_right(wrong: float) -> None:
    with pytest.raises(Fault):
        judged(ops.sqrt, (operand(1e-40),), wrong, FLUSHING)


@pytest.mark.parametrize(("op", "value"), [(ops.sqrt, 6e-8), (ops.sqrt, 1.2e-38)])
def test_normal_numbers_are_never_zeros(op: Any, value: float) -> None:
    with pytest.raises(Fault):
        judged(op, (operand(value),), 0.0, FLUSHING)


def test_a_cast_of_what_a_negation_has_made_may_be_zero() -> None:
    made = (operand(1e-40, DType.F32, negated(DType.F32, (1,))), DType.F32)
    for result in (0.0, 1e-40):
        judged(ops.cast, made, result, FLUSHING)
    with pytest.raises(Fault):
        judged(ops.cast, made, 0.0, SINGLE)


@pytest.mark.parametrize("args", [(operand(1e-40), DType.F32)])
def test_casts_keep_them(args: Any) -> None:
    with pytest.raises(Fault):
        judged(ops.cast, args, 0.0, FLUSHING)


def test_a_composite_flushes_if_one_of_its_kernels_does() -> None:
    assert coarsest([SINGLE, FLUSHING]).flushes_subnormals
    assert not coarsest([SINGLE, SINGLE]).flushes_subnormals
