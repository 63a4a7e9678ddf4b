"""The call of given arguments has the formula of the case that drew them."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import CacheConfig, DType, Precision, ops
from backbay_conformance import CASES, Call, Draw, Number
from backbay_conformance.checks.judgement import expect
from backbay_conformance.checks.traced_call import make
from backbay_conformance.draw.data import Numbers
from backbay_conformance.numbers.number import Cost
from backbay_conformance.runner.selection import names
from backbay_conformance.suite.case import call_of

names()  # declares the cases
FINE = Cost(2.0**-53, 2.0**-53)
JUDGED = sorted(key for key, case in CASES.items() if not case.op.view and not case.op.inline)


def drawn(key: tuple[str, str], turn: int) -> Call:
    draw = Draw(f"given/{key}/{turn}", turn)
    call = CASES[key].draw(draw)
    make(call, draw.mode, Precision(DType.F32, DType.F32), 0)
    return call


def plain(value: object) -> np.ndarray:
    return value.value if isinstance(value, Number) else np.asarray(value)


@pytest.mark.parametrize("key", JUDGED, ids="-".join)
def test_a_given_call_expects_what_the_drawn_call_expects(key: tuple[str, str]) -> None:
    for turn in range(24):
        call = drawn(key, turn)
        given = call_of(call.op, call.args, CacheConfig())
        assert given is not None
        assert (given.formula is None) == (given.verify is not None)
        if call.formula is None or given.formula is None:
            continue
        with np.errstate(all="ignore"):
            for ours, theirs in zip(expect(given, FINE), expect(call, FINE), strict=True):
                assert isinstance(ours, Number) == isinstance(theirs, Number) or isinstance(theirs, Number)
                np.testing.assert_array_equal(plain(ours), plain(theirs))


def test_a_row_may_be_longer_than_the_rows_that_it_is_set_into() -> None:
    draw = Draw("rows of one element")
    x, row = (draw.operand(DType.F32, shape, Numbers(), layout=False) for shape in ((1, 1, 3), (2, 1)))
    call = call_of(ops.set, (x, row, 4, (8,)), CacheConfig())
    assert call is not None
    make(call, "exact", Precision(DType.F32, DType.F32), 0)
    (result,) = expect(call, FINE)
    np.testing.assert_array_equal(plain(result).reshape(3), [x.stored[0, 0, 0], *row.stored[0]])
