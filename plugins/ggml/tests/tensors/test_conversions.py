"""Conversions between dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import DType, UnsupportedOpError


def test_a_type_that_ggml_cannot_quantize_is_refused_before_anything_runs(backend) -> None:
    with backend.new_context() as ctx:
        y = ctx.from_floats(np.zeros(256)).cast(ctx, DType.IQ2_XXS)
        with pytest.raises(UnsupportedOpError, match="quantize to iq2_xxs"):
            ctx.compute(y)


@pytest.mark.parametrize(
    ("source", "target", "numbers"),
    [
        (DType.F32, DType.I64, [2.0**31, 2.0**32 + 512, -(2.0**33), 3e15, -2.75, 2.0**32 - 512]),
        (DType.I64, DType.F32, [2**31, 2**32 + 5, -(2**33), 3 * 10**15, -7, 2**32 - 512]),
        (DType.I32, DType.I64, [0, 77, -300, 2**31 - 1, -(2**31)]),
    ],
)
def test_i64_is_converted_by_its_halves(backend, source, target, numbers) -> None:
    kinds = {DType.F32: np.float32, DType.I32: np.int32, DType.I64: np.int64}
    given = np.array(numbers).astype(kinds[source])
    with backend.new_context() as ctx:
        x = ctx.empty(source, len(given))
        fill = x.from_floats if source.is_float else x.from_ints
        y = fill(given).cast(ctx, target)
        ctx.compute(y)
        np.testing.assert_array_equal(y.numpy(), given.astype(kinds[target]))
