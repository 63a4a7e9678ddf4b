"""Every op has a case, and every case and scenario is declared as the suite promises."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import OPS, DType
from backbay_conformance import CASES, SCENARIOS, Draw
from backbay_conformance.cases.index import taken_row


def test_every_op_has_a_case() -> None:
    assert {name for _, name in CASES} == set(OPS)


@pytest.mark.parametrize("key", list(CASES), ids="/".join)
def test_calls_fit_their_op(key: tuple[str, str]) -> None:
    case = CASES[key]
    for turn in range(60):
        call = case.draw(Draw(f"fit/{turn}", turn))
        assert len(call.args) == len(case.op.parameters)
        assert (call.formula is None) != (call.verify is None)
        if call.batch is not None:
            assert len(call.batch) == len(list(call.operands()))
        if call.doubled is not None:
            assert len(call.doubled) == len(list(call.operands()))


def test_scenarios_run_in_every_size() -> None:
    for scenario in SCENARIOS.values():
        assert scenario.times["smoke"] <= scenario.times["default"] <= scenario.times["nightly"]


def test_a_row_of_nothing_is_taken() -> None:
    assert taken_row(np.zeros((1, 0), np.float16), 0, DType.F16).shape == (1, 0)
    assert taken_row(np.zeros((3, 2), np.float16), 1, DType.F16).shape == (1, 2)
