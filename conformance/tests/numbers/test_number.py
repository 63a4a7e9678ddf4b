"""Running error bounds hold for every order of work in the precision they are for, and are not idle."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backbay import DType
from backbay_conformance.numbers.encoding import BLOCK_STEP, FLOOR, round_to, to_bfloat16, unit
from backbay_conformance.numbers.number import Cost, Number, block_error, concatenate

SINGLE = Cost(unit(DType.F32), unit(DType.F32))
FINITE = st.floats(-1e4, 1e4, width=32)


def number(values: object) -> Number:
    return Number(np.asarray(values, np.float64), 0.0, SINGLE)


@given(st.lists(FINITE, min_size=1, max_size=60), st.randoms())
def test_a_sum_in_any_order_stays_within_its_bound(values: list[float], chance: object) -> None:
    bound = number(values).sum()
    shuffled = list(values)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    total = np.float32(0)
    for value in shuffled:
        total += np.float32(value)
    exact = float(sum(map(Fraction, values)))
    assert abs(float(total) - exact) <= bound.error[0] + abs(exact) * unit(DType.F32)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=40))
def test_a_product_of_rows_stays_within_its_bound(pairs: list[tuple[float, float]]) -> None:
    a, b = np.array(pairs, np.float32).T
    bound = number(a).einsum("k,k->", number(b), len(a))
    total = np.float32(0)
    for x, y in zip(a, b, strict=True):
        total = np.float32(total + x * y)
    assert abs(float(total) - float(bound.value)) <= float(bound.error) + 1e-38


@pytest.mark.parametrize("name", ["exp", "tanh", "sqrt", "sigmoid"])
def test_functions_in_single_precision_stay_within_their_bounds(name: str) -> None:
    x = np.linspace(0.01, 30, 4001).astype(np.float32)
    bound = getattr(number(x), name)()
    single = {"exp": np.exp, "tanh": np.tanh, "sqrt": np.sqrt, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}[
        name
    ](x)
    assert (
        np.abs(single.astype(np.float64) - bound.value) <= bound.error + np.abs(bound.value) * unit(DType.F32)
    ).all()


def test_an_error_of_a_thousandth_is_outside_of_every_bound() -> None:
    x = number(np.linspace(-3, 3, 101))
    for y in (x.exp(), x.tanh() + 1.5, x * x + 1.0, (x * x).sum()):
        assert (y.error < 1e-5 * np.abs(y.value) + 1e-5).all()


def test_cancellation_widens_the_bound() -> None:
    near = number([1.0]) + number([1e6]) - number([1e6])
    assert near.error[0] > unit(DType.F32) * 1e6 / 2


def test_what_is_not_finite_has_no_error() -> None:
    with np.errstate(invalid="ignore"):
        y = number([np.inf, np.nan, 1.0]) * 2.0
    assert y.error[0] == y.error[1] == 0 < y.error[2]


def test_activations_that_the_type_holds_cost_nothing() -> None:
    half = Cost(unit(DType.F32), unit(DType.F32), DType.F16)
    exact, inexact = Number(np.array([2047.0, 2049.0]), 0.0, half).activation().error
    assert exact == 0 < inexact


@pytest.mark.parametrize("dtype", [DType.Q8_0, DType.Q4_0, DType.Q5_0, DType.Q4_1, DType.Q5_1, DType.MXFP4])
def test_quantizing_moves_no_element_by_more_than_a_step(dtype: DType) -> None:
    from gguf import GGMLQuantizationType, quants

    rng = np.random.default_rng(3)
    assert dtype in BLOCK_STEP
    for scale in (1e-3, 1.0, 300.0):
        x = (rng.standard_normal((200, 64)) * scale).astype(np.float32)
        kind = GGMLQuantizationType(dtype.value)
        back = quants.dequantize(quants.quantize(x, kind), kind)
        assert (np.abs(back - x) <= block_error(x.astype(np.float64), dtype) * 1.01 + 1e-7).all()


@given(st.floats(width=32, allow_nan=False))
def test_bfloat16_is_rounded_to_nearest(value: float) -> None:
    got = float((to_bfloat16(np.array([value], np.float32)).astype(np.uint32) << 16).view(np.float32)[0])
    if np.isfinite(got) and abs(value) > 1e-37:
        assert abs(got - value) <= abs(value) * 2.0**-8
    assert round_to(np.array([got]), DType.BF16)[0] == got


def test_parts_keep_their_errors_when_joined() -> None:
    joined = concatenate([number([1.0]) * 3.0, number([2.0])], 0)
    assert joined.value.tolist() == [3.0, 2.0]
    assert joined.error[0] > joined.error[1] == 0


def test_a_step_that_flushes_subnormals_stays_within_its_bound() -> None:
    below = number([1e-20]) * number([1e-20]) * number([1e3])
    assert below.error[0] >= abs(below.value[0])


def test_a_sum_beyond_a_narrow_accumulator_has_no_bound():
    half = Cost(unit(DType.F16), unit(DType.F16), DType.F16, largest=65504.0)
    small, large = Number(np.full((1, 2), 100.0), 0.0, half), Number(np.full((1, 2), 300.0), 0.0, half)
    assert np.isfinite(small.einsum("ik,jk->ij", small, 2).error).all()
    assert np.isinf(large.einsum("ik,jk->ij", large, 2).error).all()
    assert np.isinf(Number(np.array([[6e4, 6e4]]), 0.0, half).sum().error).all()


def test_a_sum_in_half_precision_may_lose_what_lies_below_its_grid():
    half = Cost(unit(DType.F16), unit(DType.F16), DType.F16, 65504.0, FLOOR[DType.F16])
    tiny = Number(np.full((1, 2), 1e-5), 0.0, half)
    product = tiny.einsum("ik,jk->ij", tiny, 2)
    assert product.error[0, 0] > product.value[0, 0] > 0  # 2e-10, which half precision rounds to 0
