"""Reads see the writes before them and none after, whatever the order."""

from __future__ import annotations

import os

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
