"""Times of ops, on the CPU and over several devices."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from layered_model import LAYERS, generate, write_model
from rpc_servers import serving

from backbay import BackendParams, CancelledError, GPULayers, GPULayersList, ops
from backbay.gguf import open as open_gguf
from backbay.internals import ProfiledRun
from backbay.plugin import CPU
from backbay_ggml import Ggml
from backbay_ggml.library.abi import NULL
from backbay_ggml.library.library import load_library
from backbay_ggml.plans import callbacks


def ops_of(run: ProfiledRun) -> list[str]:
    """The names of the ops that took time, in order."""
    named = [run.graph.nodes[index].op for timing in run.timings for index in timing.nodes]
    return [op.name for op in named if op is not None]


def test_each_op_of_ours_has_the_times_of_its_ggml_ops(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((3, 64), np.float32))
        y = x.rms_norm(ctx, ctx.from_floats(np.ones(64, np.float32)), 1e-5)
        y = y.reshape(ctx, 32, 2, 3).permute(ctx, 0, 2, 1).contiguous(ctx).silu(ctx)
        with backend.profiling() as runs:
            ctx.compute(y)
    (run,) = runs
    # A norm is two ops of ggml, which may run as one; views take no time.
    assert list(dict.fromkeys(ops_of(run))) == ["rms_norm", "contiguous", "silu"]
    assert {timing.device for timing in run.timings} == {CPU}
    assert 0 < sum(timing.seconds for timing in run.timings) <= run.seconds


def test_an_op_has_the_time_from_the_end_of_the_one_before(backend, monkeypatch) -> None:
    """By a clock that shows the begin of the run, and the end of each op."""
    readings = itertools.accumulate([100.0, 5.0, 7.0, 1.0, 2.0])
    monkeypatch.setattr(callbacks, "perf_counter", lambda: next(readings))
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((3, 3), np.float32))
        y = x.mulmat(ctx, x).rows(ctx, ctx.from_ints([0, 1])).mulmat(ctx, x).neg(ctx)
        with backend.profiling() as runs:
            ctx.compute(y)
    assert ops_of(runs[0]) == ["mulmat", "rows", "mulmat", "neg"]
    assert [timing.seconds for timing in runs[0].timings] == [5, 7, 1, 2]


def test_a_norm_that_two_ops_read_is_not_taken_for_a_merged_one(backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((3, 64), np.float32))
        normed = x.rms_norm(ctx, None, 1e-5)
        y = normed.mul(ctx, x).add(ctx, normed)
        z = x.rms_norm(ctx, None, 1e-6).mul(ctx, x)
        with backend.profiling() as runs:
            ctx.compute(y, z)
    assert {"add"} <= set(ops_of(runs[0])) or runs[0].timings == ()


def test_a_profiled_run_can_be_cancelled_in_its_midst(backend) -> None:
    class AfterLooks(threading.Event):
        looks = 5

        def is_set(self) -> bool:
            self.looks -= 1
            return self.looks < 0

    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones(8, np.float32))
        y = x
        for _ in range(50):
            y = y.add(ctx, x)
        with backend.profiling() as runs:
            with pytest.raises(CancelledError):
                ctx.compute(y, cancel=AfterLooks())
            ctx.compute(y)
            assert y.floats().tolist() == [51.0] * 8
    assert ops_of(runs[0]) == ["add"] * 50


def test_an_error_of_a_cancellation_ends_a_profiled_run(backend) -> None:
    class Broken(threading.Event):
        looks = 3

        def is_set(self) -> bool:
            self.looks -= 1
            if self.looks < 0:
                raise ZeroDivisionError
            return False

    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones(8, np.float32))
        y = x.neg(ctx).neg(ctx).neg(ctx).neg(ctx)
        with backend.profiling():
            with pytest.raises(ZeroDivisionError):
                ctx.compute(y, cancel=Broken())
            ctx.compute(y)
            assert y.floats().tolist() == [1.0] * 8


@pytest.mark.skipif(
    load_library().lib.ggml_backend_reg_by_name(b"RPC") == NULL, reason="this library has no RPC"
)
def test_times_name_the_device_that_each_op_ran_on(tmp_path) -> None:
    path = write_model(tmp_path / "model.gguf")
    with serving() as server:
        layers = GPULayersList([GPULayers("RPC:0", range(2, LAYERS + 1))])
        params = BackendParams(num_threads=1, gpu_layers=layers, options={"rpc": server.endpoint})
        with Ggml(open_gguf(path), params) as backend:
            backend.load()
            expected = generate(backend)
            with backend.profiling() as runs:
                found = generate(backend)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(runs) == len(expected)
    for run in runs:
        nodes = [(timing.device, run.graph.nodes[index]) for timing in run.timings for index in timing.nodes]
        products = [(device, node.args[0].leaf.name) for device, node in nodes if node.op is ops.mulmat]
        on_host = {name for device, name in products if device == CPU}
        elsewhere = {name for device, name in products if device == "RPC:0"}
        assert {name.partition("_")[0] for name in elsewhere} >= {"blk.2.attn", "blk.3.ffn"}
        assert {name.partition("_")[0] for name in on_host} == {
            "blk.0.attn",
            "blk.0.ffn",
            "blk.1.attn",
            "blk.1.ffn",
        }
        assert sum(timing.seconds for timing in run.timings) <= run.seconds
