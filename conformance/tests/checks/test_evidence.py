"""A message shows the operands that the first wrong element depends on."""

from __future__ import annotations

import numpy as np

import backbay
from backbay import DType, ops
from backbay_conformance.checks.judgement import operands_at
from backbay_conformance.draw.layout import Layout
from backbay_conformance.draw.operand import Operand
from backbay_conformance.suite.case import Call, call_of


def test_a_scalar_is_shown_for_an_op_of_rows() -> None:
    x = Operand(DType.F32, (), lambda making, operand: np.float32(3), Layout(), 0)
    x.hold(np.full((), 3, np.float32))
    with backbay.open(None, backend="cpu_ref") as backend:
        call = call_of(ops.softmax, (x,), backend.cache_config())
    assert isinstance(call, Call)
    assert operands_at(call, (), ()) == "\n  with x[] = 3"
