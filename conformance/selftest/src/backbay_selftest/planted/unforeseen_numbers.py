"""Faults planted without knowledge of the suite an eighth time: rare repeats, numbers and attributes."""

from __future__ import annotations

import numpy as np

from backbay import ops

from ..faults import BoundCall, Kind, Result, fault
from ..fused import rank4


@fault(Kind.WRONG_AXIS, ops.add, ops.mul, like="L14817")
def two_outer_dimensions_repeat_in_different_ways(call: BoundCall) -> Result:
    """Where several elements repeat in dimensions 2 and 3, those of dimension 3 repeat one after the other."""
    x, t2 = rank4(call.x), rank4(call.t2)
    if not all(1 < few < many for few, many in zip(t2.shape[:2], x.shape[:2], strict=True)):
        return call.right()
    return call.right(x=x, t2=np.repeat(t2, x.shape[0] // t2.shape[0], 0)).reshape(call.x.shape)
