"""Codes of q8_0 blocks."""

from __future__ import annotations

import numpy as np

from backbay import DType
from backbay.internals import Bytes

CHUNK = 1 << 12  # blocks per pass


def has_lowest_code(data: Bytes) -> bool:
    """Whether a code of these blocks is -128, which has no opposite."""
    size = DType.Q8_0.type_size
    for start in range(0, data.size, CHUNK * size):
        places = np.flatnonzero(data[start : start + CHUNK * size] == 128)
        if (places % size > 1).any():  # the first two bytes are the scale
            return True
    return False
