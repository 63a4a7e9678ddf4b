"""Comparisons refuse what is wrong and accept what is right, to the last element."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import DType
from backbay_conformance.fault import Fault
from backbay_conformance.numbers.comparison import compare, first_bits, must_equal
from backbay_conformance.numbers.encoding import unit
from backbay_conformance.numbers.number import Cost, Number

SINGLE = Cost(unit(DType.F32), unit(DType.F32))


def expected(values: object, error: float = 0.0) -> Number:
    return Number(np.asarray(values, np.float64), error, SINGLE)


def single(values: object) -> np.ndarray:
    return np.asarray(values, np.float32)


def test_integers_are_compared_by_value() -> None:
    compare(expected([3.0, -0.0]), single([3.0, 0.0]), DType.F32, exact=True)
    with pytest.raises(Fault, match=r"1 of 2 wrong: at \(1,\) expected 5.0, got 5.0000004"):
        compare(
            expected([3.0, 5.0]),
            single([3.0, np.nextafter(np.float32(5), np.float32(6))]),
            DType.F32,
            exact=True,
        )


def test_a_bound_is_per_element() -> None:
    compare(expected([1.0, 1e6], 1e-3), single([1.0005, 1e6]), DType.F32, exact=False)
    with pytest.raises(Fault, match="bound"):
        compare(expected([1.0, 1e6], 1e-3), single([1.01, 1e6]), DType.F32, exact=False)


def test_the_ratio_says_how_near_the_bound_is() -> None:
    errors = compare(expected([1.0], 1e-3), single([1.0005]), DType.F32, exact=False)
    assert errors is not None
    assert errors.largest == pytest.approx(0.5, rel=0.01)


def test_last_places_are_those_of_the_result_type_and_of_no_result_below_its_normal_range() -> None:
    true = [1.0, 1.9, -8.0, 3e-39, 5.0]
    got = single([1 + 2**-22, np.nextafter(np.float32(1.9), np.float32(2)), -8, 0, 6])
    errors = compare(expected(true, 0.1), got, DType.F32, exact=False, free=np.arange(5) == 4, instead=None)
    assert errors is not None
    assert errors.last_places() == pytest.approx([2, 1, 0, 0, 0], abs=0.5)
    halves = compare(expected([1.0, 2.0**-15], 0.1), np.float16([1 + 2**-9, 0]), DType.F16, exact=False)
    assert halves is not None
    assert halves.last_places().tolist() == [2, 0]


@pytest.mark.parametrize(
    ("want", "got"), [(np.nan, 1.0), (np.inf, -np.inf), (1.0, np.nan), (np.inf, 3e38), (0.0, np.inf)]
)
def test_what_is_not_finite_must_be_the_same(want: float, got: float) -> None:
    with pytest.raises(Fault):
        compare(expected([want], 1.0), single([got]), DType.F32, exact=False)


def test_rounding_may_overflow_at_the_edge() -> None:
    compare(expected([65519.0], 2.0), np.asarray([np.inf], np.float16), DType.F16, exact=False)


def test_bits_tell_zeros_apart_but_no_nans() -> None:
    zero, other = single([0.0, np.nan]), single([-0.0, np.nan])
    other.view(np.uint32)[1] |= 1
    compare(zero, single([0.0, other[1]]), DType.F32, exact=False)
    with pytest.raises(Fault, match="bits"):
        compare(zero, other, DType.F32, exact=False)


def test_shapes_must_agree() -> None:
    with pytest.raises(Fault, match="shape"):
        compare(expected([[1.0]]), single([1.0]), DType.F32, exact=False)


def test_what_is_free_may_be_one_of_a_few_values() -> None:
    free, instead = np.array([True, False]), (np.nan, 9.0)
    for value in (1.0, 9.0, np.nan):
        compare(
            expected([1.0, 2.0]), single([value, 2.0]), DType.F32, exact=False, free=free, instead=instead
        )
    for wrong in ([7.0, 2.0], [1.0, 9.0]):
        with pytest.raises(Fault, match="1 of 2 wrong"):
            compare(expected([1.0, 2.0]), single(wrong), DType.F32, exact=False, free=free, instead=instead)


def test_blocks_are_compared_by_their_numbers_and_then_by_their_bytes() -> None:
    block = np.zeros((2, DType.Q8_0.type_size), np.uint8)
    block[:, 1] = 0x3C  # a scale of 1
    other = block.copy()
    other[1, 2 + 5] = 7
    with pytest.raises(Fault, match=r"1 of 64 wrong: at \(5, 1\) expected 0.0, got 7.0"):
        compare(block, other, DType.Q8_0, exact=False)
    other = block.copy()
    other[1, 1] = 0x40  # another scale of zeros
    with pytest.raises(Fault, match=r"same numbers: 1 of 68 bytes, at \(1, 1\) 0x3c and 0x40"):
        compare(block, other, DType.Q8_0, exact=False)


def test_the_first_other_bits_are_shown_beside_their_number() -> None:
    left, right = single([1.0, np.nan]), single([1.0, np.nan])
    right.view(np.uint32)[1] |= 1
    assert (
        first_bits(left, right, DType.F32) == "1 of 2 elements, at (1,) nan (0x7fc00000) and nan (0x7fc00001)"
    )


def test_the_first_element_that_differs_is_shown() -> None:
    must_equal(np.array([1.0, np.nan]), np.array([1.0, np.nan]), "a read")
    with pytest.raises(Fault, match=r"a read: 1 of 4 wrong: at \(1, 0\) expected 2.0, got 5.0"):
        must_equal(np.array([[1.0, 5.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [3.0, 4.0]]), "a read")
    with pytest.raises(Fault, match=r"expected the shape \(2, 1\), got \(2,\)"):
        must_equal(np.zeros(2), np.zeros((1, 2)), "a read")
