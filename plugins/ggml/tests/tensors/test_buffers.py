"""Memory of leaves: guard zones, poison and fresh data."""

from __future__ import annotations

import pytest

from backbay import BackendParams, Debug, DType, GuardZoneError
from backbay_ggml import Ggml


def test_guards_and_poison_do_not_change_results() -> None:
    params = BackendParams(debug=Debug(poison=True, guard_bytes=64))
    with Ggml(None, params) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1, 2, 3])
        y = x.sqr(ctx).copy(ctx, ctx.empty(DType.F16, 3))
        ctx.compute(y)
        assert y.floats().tolist() == [1, 4, 9]


@pytest.mark.parametrize("side", [0, 1])
def test_a_write_beside_a_leaf_is_a_guard_zone_error(side) -> None:
    params = BackendParams(debug=Debug(guard_bytes=64))
    with Ggml(None, params) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1, 2, 3])
        y = x.sqr(ctx)
        ctx.compute(y)
        x.leaf.buffer._guards[side][-1] = 0
        with pytest.raises(GuardZoneError, match="outside of a leaf of 12 bytes"):
            ctx.compute(y)
