"""Memory that is not the host's is used as such: caches, weights, and leaves that each run copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_step import SHAPES, Step
from model_file import quantized, write_model
from random_graphs import play

import backbay
from backbay import DType
from backbay_onnx.backend import OnnxBackend
from backbay_onnx.memory.buffers import DeviceBuffer, LeafBuffer
from backbay_onnx.session.device import Device
from backbay_onnx.session.providers import HOST_PROVIDER


class Elsewhere(OnnxBackend):
    """The host's memory, treated as if it were that of a device."""

    name = "elsewhere"
    device = Device("CUDA:0", replace(HOST_PROVIDER, has_memory=True))


class Copied(OnnxBackend):
    """The host, treated as a device that each run copies to and from, as WebGPU does."""

    name = "copied"
    device = Device("WebGPU:0", HOST_PROVIDER)


@pytest.mark.parametrize("kind", [Elsewhere, Copied])
def test_random_graphs_read_and_write_in_order_on_a_device(kind: type[OnnxBackend]) -> None:
    for seed in range(40):
        ours, expected = play(kind, seed), play("cpu_ref", seed)
        for mine, theirs in zip(ours, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")


def test_a_decoder_keeps_its_cache_on_the_device() -> None:
    with backbay.open(None, backend=Elsewhere) as backend, backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = Step(backend), Step(reference)
        assert isinstance(ours.cache.leaf.buffer, DeviceBuffer)
        for shape in SHAPES:
            np.testing.assert_allclose(
                ours.run(backend, *shape), theirs.run(reference, *shape), rtol=2e-5, atol=2e-5
            )
        (compiled,) = next(iter(backend.sessions._compiled.values()))
        assert [state.in_place for state in compiled.lowered.states] == [True]


def test_no_cache_is_bound_in_place_where_each_run_copies_it() -> None:
    with backbay.open(None, backend=Copied) as backend, backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = Step(backend), Step(reference)
        assert isinstance(ours.cache.leaf.buffer, LeafBuffer)
        for shape in SHAPES:
            np.testing.assert_allclose(
                ours.run(backend, *shape), theirs.run(reference, *shape), rtol=2e-5, atol=2e-5
            )
        (compiled,) = next(iter(backend.sessions._compiled.values()))
        assert not any(state.in_place for state in compiled.lowered.states)


@pytest.mark.parametrize("kind", [Elsewhere, Copied])
def test_a_state_that_was_placed_on_the_host_is_written_there(kind: type[OnnxBackend]) -> None:
    with backbay.open(None, backend=kind) as backend, backend.new_context() as ctx:
        state = ctx.input().zeros(DType.F32, 2, 3)
        for value in (1.0, 2.0):
            ctx.forward(state.set_rows(ctx, ctx.from_floats([[value, value]]), ctx.from_ints([int(value)])))
        ctx.compute(state.sum_rows(ctx))
        assert state.numpy().tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("kind", [Elsewhere, Copied])
def test_leaves_on_the_host_are_bound_anew_for_each_run(kind: type[OnnxBackend]) -> None:
    """ONNX Runtime copies an input to a device when it is bound: later writes by the host must not be missed."""
    with backbay.open(None, backend=kind) as backend, backend.new_context() as ctx:
        x, state = ctx.input().from_floats([1.0, 2.0]), ctx.input().from_floats([1.0, 1.0])
        total = x.add(ctx, state.add(ctx, x).copy(ctx, state))
        for value in (1.0, 5.0):
            for leaf in (x.leaf, state.leaf):  # the bound memory keeps its data, like a copy on a device
                assert leaf is not None
                assert isinstance(leaf.buffer, LeafBuffer)
                leaf.buffer.data = leaf.buffer.data.copy()
            x.from_floats([value, value])
            before = state.numpy()
            ctx.compute(total)
            assert state.numpy().tolist() == (before + value).tolist()
            assert total.numpy().tolist() == (before + 2 * value).tolist()


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q4_K, DType.Q6_K, DType.F16, DType.F32], ids=str)
def test_weights_lie_on_the_device_once(tmp_path: Path, dtype: DType) -> None:
    rng = np.random.default_rng(8)

    def weight(*shape: int) -> Any:
        if dtype.is_quantized:
            return dtype, quantized(rng, dtype, *shape)
        return dtype, rng.standard_normal(shape[::-1]).astype(
            np.float16 if dtype is DType.F16 else np.float32
        )

    path = write_model(
        tmp_path / "model.gguf",
        {"token_embd.weight": weight(256, 9), "blk.0.w": weight(256, 8), "blk.0.e": weight(256, 8, 3)},
        block_count=1,
    )
    results = []
    for kind in (Elsewhere, "cpu_ref"):
        with backbay.open(path, backend=kind) as backend, backend.new_context() as ctx:
            backend.load()
            embedding, w, e = (backend.get(name) for name in ("token_embd.weight", "blk.0.w", "blk.0.e"))
            assert embedding and w and e
            x = embedding.rows(ctx, ctx.from_ints([3, 8]))
            chosen = e.mulmat_id(ctx, x.reshape(ctx, 256, 1, 2), ctx.from_ints([[0, 2], [2, 1]]))
            ctx.compute(x, w.mulmat(ctx, x), chosen)
            results.append([x.numpy(), chosen.numpy()])
            if kind is Elsewhere:
                assert backend.memory().cpu.weights[0].size == 0
                assert backend.memory().gpus[0].weights[0].size > 0
    for ours, theirs in zip(*results, strict=True):
        assert np.abs(ours - theirs).max() <= 2e-2 * np.abs(theirs).max()


def test_of_rows_for_one_place_a_device_writes_the_last_one_as_a_whole() -> None:
    with backbay.open(None, backend=Elsewhere) as backend, backend.new_context() as ctx:
        leaf = ctx.layer(0).zeros(DType.F32, 5, 4)
        ids = ctx.layer(0).empty(DType.I32, 3).from_ints([2, 0, 1])
        rows = np.arange(15, dtype=np.float32).reshape(3, 5)
        written = leaf.set_rows(ctx, ctx.from_floats(rows), ids)
        ctx.compute(written)
        np.testing.assert_array_equal(leaf.numpy(), [rows[1], rows[2], rows[0], [0] * 5])
        assert len(_scatters(backend)) == 1
        ids.from_ints([3, 1, 3])
        ctx.compute(written)
        np.testing.assert_array_equal(leaf.numpy(), [rows[1], rows[1], rows[0], rows[2]])
        assert sorted(_scatters(backend)) == [["ScatterElements", "ScatterND"], ["ScatterND"]]


def _scatters(backend: OnnxBackend) -> list[list[str]]:
    """What writes rows, by session."""
    models = [compiled.lowered.model for known in backend.sessions._compiled.values() for compiled in known]
    return [[node.op_type for node in model.graph.node if "Scatter" in node.op_type] for model in models]


def test_infinities_are_put_in_order_on_a_device() -> None:
    with backbay.open(None, backend=Elsewhere) as backend, backend.new_context() as ctx:
        largest = float(np.finfo(np.float32).max)
        data = [np.inf, largest, -np.inf, 0, np.inf, -largest, -np.inf]
        order = ctx.from_floats(data).argsort(ctx)
        ctx.compute(order)
        np.testing.assert_array_equal(np.array(data)[order.numpy()], np.sort(data))
