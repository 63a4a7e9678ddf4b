"""Codes of q8_0 blocks."""

from __future__ import annotations

import numpy as np
import pytest

from backbay_ggml.weights.model_weights import has_lowest_code


@pytest.mark.parametrize("place", [None, 0, 1, 2, 33, 34 * 5000 + 7, -1])
def test_the_lowest_code_is_found_anywhere_but_in_scales(place) -> None:
    data = np.full(34 * 9000, 127, np.uint8)
    if place is not None:
        data[place] = 128
    assert has_lowest_code(data) == (place not in (None, 0, 1))
