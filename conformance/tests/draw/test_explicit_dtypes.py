"""A case that asks for a type gets it, also the one whose number is 0."""

from __future__ import annotations

import pytest

from backbay import DType
from backbay_conformance.draw.draw import FLOATS, Draw


@pytest.mark.parametrize("turn", [0, 3, 6])
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_operand_has_the_type_that_was_asked_for(turn, dtype: DType) -> None:
    assert Draw("seed", turn).floats((3,), dtype=dtype).dtype is dtype
