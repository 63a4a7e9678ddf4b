"""The cases of trials: their results are those of the ops, by the reference, and by the delta rule's composite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import backbay
from backbay import OPS, Context, Tensor
from backbay.internals import Array, dequantize
from backbay_native.trial_cases import SCALES, TrialCase, random_blocks, recurrence_cases

CASES = recurrence_cases()


@pytest.fixture
def ctx() -> Iterator[Context]:
    with backbay.open(None, backend="cpu_ref") as backend, backend.new_context() as made:
        yield made


def given(ctx: Context, case: TrialCase) -> list[Tensor]:
    return [ctx.from_ints(x) if x.dtype == np.int32 else ctx.from_floats(x) for x in case.operands]


def close(ctx: Context, result: Tensor, expected: Array) -> None:
    ctx.compute(result)
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=["gated", "removing", "scan"])
def test_the_reference_gives_the_results(ctx: Context, case: TrialCase) -> None:
    first, *others = given(ctx, case)
    close(ctx, getattr(first, case.op)(ctx, *others), case.expected)


@pytest.mark.parametrize("case", CASES[:2], ids=["gated", "removing"])
def test_the_composite_gives_the_results(ctx: Context, case: TrialCase) -> None:
    operands = given(ctx, case)
    composite = OPS[case.op].composite
    assert composite is not None
    close(ctx, composite(ctx, *operands, *[None] * (7 - len(operands))), case.expected)


@pytest.mark.parametrize("dtype", SCALES)
def test_random_blocks_are_numbers_near_codes(dtype: backbay.DType) -> None:
    numbers = dequantize(random_blocks(dtype, 2560, np.random.default_rng(1)).reshape(1, -1), dtype)
    assert numbers.size == 2560
    assert 1 < np.abs(numbers).max() < 1.5 * 127 * 64
