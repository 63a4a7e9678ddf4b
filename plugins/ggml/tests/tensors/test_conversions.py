"""Conversions between dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from backbay import (
    DType,
    UnsupportedOpError,
)


def test_a_type_that_ggml_cannot_quantize_is_refused_before_anything_runs(backend) -> None:
    with backend.new_context() as ctx:
        y = ctx.from_floats(np.zeros(256)).cast(ctx, DType.IQ2_XXS)
        with pytest.raises(UnsupportedOpError, match="quantize to iq2_xxs"):
            ctx.compute(y)
