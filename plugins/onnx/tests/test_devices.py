"""Which device is taken, what is refused, and that memory which is not the host's is used as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_sessions
import test_writes
from model_file import quantized, write_model

import backbay
from backbay import BackendParams, BackendUnavailableError, DType, GPULayers, GPULayersList, OptionError
from backbay_onnx.backend import OnnxBackend
from backbay_onnx.memory.buffers import DeviceBuffer, LeafBuffer
from backbay_onnx.session.device import HOST, Device, device_of
from backbay_onnx.session.device_choice import choose
from backbay_onnx.session.providers import GPU_PROVIDERS, HOST_PROVIDER
from backbay_onnx.session.runtime import runtime

NO_CUDA = "CUDAExecutionProvider" not in runtime().get_available_providers()
needs_none = pytest.mark.skipif(not NO_CUDA, reason="this ONNX Runtime is built with CUDA")


def layers(id: str, *numbers: int) -> GPULayersList:
    return GPULayersList([GPULayers(id, numbers)])


@needs_none
def test_a_gpu_that_is_asked_for_and_missing_is_an_error_with_its_remedy() -> None:
    for params in (
        BackendParams(options={"provider": "cuda"}),
        BackendParams(gpu_layers=layers("CUDA:0", 0)),
        BackendParams(gpu_layers=layers("CUDA:0", 0), options={"provider": "cuda"}),
    ):
        with pytest.raises(
            BackendUnavailableError, match=r"CUDA:0 was asked for.*pip install backbay-onnx\[cuda\]"
        ):
            backbay.open(None, backend="onnx", params=params)


@needs_none
def test_nobody_asking_for_a_gpu_gets_the_cpu() -> None:
    for params in (
        BackendParams(),
        BackendParams(gpu_layers=GPULayersList()),
        BackendParams(options={"provider": "cpu"}),
    ):
        with backbay.open(None, backend="onnx", params=params) as backend:
            assert [device.id for device in backend.devices()] == ["CPU:0"]


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        ("cuda", GPULayersList(), "for the CPU alone"),
        ("cpu", layers("CUDA:0", 0, 1, 2), "asks for cpu, but"),
        ("auto", layers("CUDA:0", 1, 2), "all layers, 0 to 2, on one device, or none"),
        ("auto", GPULayersList([GPULayers("CUDA:0", [0]), GPULayers("CUDA:1", [1, 2])]), "on one device"),
        ("auto", layers("Vulkan:0", 0, 1, 2), "names 'Vulkan:0'"),
        ("auto", layers("CUDA:x", 0, 1, 2), "names 'CUDA:x'"),
    ],
)
def test_what_contradicts_itself_or_is_partial_is_refused(
    option: str, given: GPULayersList, why: str
) -> None:
    with pytest.raises(OptionError, match=why):
        choose(option, given, 2)


def test_a_session_on_another_provider_than_asked_for_is_refused() -> None:
    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        ctx.forward(ctx.from_ints([1]).cast(ctx, DType.F32)).reserve()
        ((compiled,),) = backend.sessions._compiled.values()
        HOST.check(compiled.session)
        with pytest.raises(BackendUnavailableError, match="CUDA:1 was asked for, but ONNX Runtime uses CPU"):
            device_of(GPU_PROVIDERS[0], 1).check(compiled.session)


class Elsewhere(OnnxBackend):
    """The host's memory, treated as if it were that of a device."""

    name = "elsewhere"
    device = Device("CUDA:0", HOST_PROVIDER)


def test_random_graphs_read_and_write_in_order_on_a_device() -> None:
    for seed in range(40):
        ours, expected = test_writes.play(Elsewhere, seed), test_writes.play("cpu_ref", seed)
        for mine, theirs in zip(ours, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")


def test_a_decoder_keeps_its_cache_on_the_device() -> None:
    with backbay.open(None, backend=Elsewhere) as backend, backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = test_sessions.Step(backend), test_sessions.Step(reference)
        assert isinstance(ours.cache.leaf.buffer, DeviceBuffer)
        for shape in test_sessions.SHAPES:
            np.testing.assert_allclose(
                ours.run(backend, *shape), theirs.run(reference, *shape), rtol=2e-5, atol=2e-5
            )
        (compiled,) = next(iter(backend.sessions._compiled.values()))
        assert [state.in_place for state in compiled.lowered.states] == [True]


def test_a_state_that_was_placed_on_the_host_is_written_there() -> None:
    with backbay.open(None, backend=Elsewhere) as backend, backend.new_context() as ctx:
        state = ctx.input().zeros(DType.F32, 2, 3)
        for value in (1.0, 2.0):
            ctx.forward(state.set_rows(ctx, ctx.from_floats([[value, value]]), ctx.from_ints([int(value)])))
        ctx.compute(state.sum_rows(ctx))
        assert state.numpy().tolist() == [[0, 0], [1, 1], [2, 2]]


def test_what_the_host_holds_is_bound_anew_for_each_run() -> None:
    """To a device of its own, ONNX Runtime copies an input when it is bound: what is written later must not be missed."""
    with backbay.open(None, backend=Elsewhere) as backend, backend.new_context() as ctx:
        x, state = ctx.input().from_floats([1.0, 2.0]), ctx.input().from_floats([1.0, 1.0])
        total = x.add(ctx, state.add(ctx, x).copy(ctx, state))
        for value in (1.0, 5.0):
            for leaf in (x.leaf, state.leaf):  # the old memory stays as it was, like a copy on a device
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


def test_the_host_is_a_device_too() -> None:
    assert choose("cpu", None, 3) is HOST
