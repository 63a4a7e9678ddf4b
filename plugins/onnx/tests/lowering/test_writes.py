"""Reads see the writes before them and none after, whatever the order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from random_graphs import play

import backbay
from backbay import DType

GRAPHS = int(os.environ.get("BACKBAY_ONNX_GRAPHS", "120"))  # the nightly run sets 2000


@pytest.mark.parametrize("block", range(4))
@pytest.mark.few(1)
def test_random_graphs_read_and_write_in_order(block: int) -> None:
    for seed in range(block, GRAPHS, 4):
        ours, expected = play("onnx", seed), play("cpu_ref", seed)
        for position, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
            np.testing.assert_allclose(
                mine, theirs, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}, value {position}"
            )


def test_a_state_of_another_context_is_written_and_read() -> None:
    with backbay.open(None, backend="onnx") as backend:
        home, other = backend.new_context(), backend.new_context()
        state = home.zeros(DType.F32, 4, 3)
        other.compute(other.from_floats([1.0, 2.0, 3.0, 4.0]).copy(other, state.slice(other, 1, 1, 2)))
        doubled = state.scale(home, 2.0)
        home.compute(doubled)
        np.testing.assert_array_equal(doubled.numpy()[:, 0], [0.0, 2.0, 0.0])


def test_a_compute_without_outputs_writes() -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        state = ctx.zeros(DType.F32, 4)
        ctx.forward(ctx.from_floats([1.0, 2.0, 3.0, 4.0]).copy(ctx, state)).compute()
        np.testing.assert_array_equal(state.floats(), [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("look", "slices"),
    [
        pytest.param(lambda ctx, x: x.view(ctx, 0, (12, 2), (48,)), 0, id="whole"),
        pytest.param(lambda ctx, x: x.view(ctx, 0, (12, 1), (48,)), 1, id="first"),
        pytest.param(lambda ctx, x: x.view(ctx, 48, (12, 1), (48,)), 1, id="later"),
        pytest.param(lambda ctx, x: x.reshape(ctx, 2, 12).permute(ctx, 1, 0), 0, id="turned"),
    ],
)
def test_rows_that_are_a_whole_value_are_written_without_a_slice(
    look: Callable[[Any, Any], Any], slices: int
) -> None:
    """Whatever their shape; parts of a value, and elements in another order, are written as they are seen."""
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = {}
    for name in ("onnx", "cpu_ref"):
        with backbay.open(None, backend=name) as backend, backend.new_context() as ctx:
            rows, state = look(ctx, ctx.from_floats(data).scale(ctx, 2.0)), ctx.zeros(DType.F16, 12, 4)
            ctx.compute(state.set_rows(ctx, rows, ctx.from_ints([3, 1][: rows.dim(1)])))
            found[name] = state.numpy()
            if name == "onnx":
                [[compiled]] = backend.sessions._compiled.values()
                ops = [node.op_type for node in compiled.lowered.model.graph.node]
                assert ops.count("Slice") == slices
    np.testing.assert_array_equal(found["onnx"], found["cpu_ref"])
    assert found["onnx"].any()
