"""Some layers on a device, the others on the CPU: what runs and lies where, and that results stay the same."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_file import quantized, write_model
from random_graphs import play

import backbay
from backbay import BackendParams, DType, GPULayers, GPULayersList
from backbay_onnx.backend import OnnxBackend
from backbay_onnx.memory.buffers import DeviceBuffer, LeafBuffer
from backbay_onnx.plans.plan import OnnxPlan
from backbay_onnx.session.cpu_nodes import ANNOTATION
from backbay_onnx.session.device import Device
from backbay_onnx.session.layer_assignment import LayerAssignment
from backbay_onnx.session.providers import HOST_PROVIDER

GPU, CPU = "CUDA:0", "CPU:0"
WIDTH, WORDS, BLOCKS, CELLS = 256, 20, 4, 8
WITH_MEMORY = Device(GPU, replace(HOST_PROVIDER, has_memory=True))  # the host's memory, treated as a device's
COPIED = Device("WebGPU:0", HOST_PROVIDER)  # the host, treated as a device that each run copies to and from


def in_part(device: Device) -> type[OnnxBackend]:
    """A backend without a model whose layer 0 is on the CPU; layer 1 and what has no layer are not."""

    class InPart(OnnxBackend):
        name = "in_part"
        layers = LayerAssignment(device, frozenset({0}), output=1)

    InPart.device = device  # type: ignore[assignment]
    return InPart


class WithGpu(OnnxBackend):
    """A backend whose GPU is the host, with memory that is treated as the GPU's own."""

    name = "with_gpu"
    device = WITH_MEMORY


def params(layers: Sequence[int], **others: Any) -> BackendParams:
    return BackendParams(gpu_layers=GPULayersList([GPULayers(GPU, layers)]), **others)


def write_decoder(folder: Path, dtype: DType, *, tied: bool) -> Path:
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Any:
        if dtype.is_quantized:
            return dtype, quantized(rng, dtype, *shape)
        return dtype, rng.standard_normal(shape[::-1]).astype(
            np.float16 if dtype is DType.F16 else np.float32
        )

    weights = {"token_embd.weight": weight(WIDTH, WORDS)}
    weights |= {f"blk.{n}.w": weight(WIDTH, WIDTH) for n in range(BLOCKS)}
    if not tied:
        weights["output.weight"] = weight(WIDTH, WORDS)
    return write_model(folder / "model.gguf", weights, block_count=BLOCKS)


class Decoder:
    """Steps of a small model with a cache for each layer."""

    def __init__(self, backend: Any, *, tied: bool) -> None:
        self.backend, self.home = backend, backend.new_context()
        self.caches = [self.home.layer(n).zeros(DType.F32, WIDTH, CELLS, row_axis=1) for n in range(BLOCKS)]
        self.blocks = [backend.get(f"blk.{n}.w") for n in range(BLOCKS)]
        self.embedding = backend.get("token_embd.weight")
        self.output = self.embedding if tied else backend.get("output.weight")

    def trace(self, ctx: Any, tokens: Sequence[int], first: int) -> Any:
        host = ctx.input()
        places = host.from_ints(range(first, first + len(tokens)))
        x = self.embedding.rows(host, host.from_ints(tokens))
        for n, (w, cache) in enumerate(zip(self.blocks, self.caches, strict=True)):
            at = ctx.layer(n)
            ctx.forward(cache.set_rows(at, w.mulmat(at, x.rms_norm(at, eps=1e-6)), places))
            seen = cache.view(at, 0, (WIDTH, first + len(tokens)), (4 * WIDTH,))
            weights = seen.mulmat(at, x).softmax(at)
            x = seen.permute(at, 1, 0).contiguous(at).mulmat(at, weights).add(at, x).silu(at)
        end = ctx.layer(BLOCKS)
        return self.output.mulmat(end, x.rms_norm(end, eps=1e-6))

    def run(self) -> list[Any]:
        found = []
        for tokens, first in (([3, 1, 4, 1], 0), ([5], 4), ([9], 5)):
            with self.backend.new_context() as ctx:
                logits = self.trace(ctx, tokens, first)
                ctx.compute(logits)
                found.append(logits.numpy())
        return [*found, *[cache.numpy()[:6] for cache in self.caches]]


def answers(
    path: Path, kind: Any, params: BackendParams = BackendParams(), *, tied: bool = False
) -> list[Any]:
    with backbay.open(path, backend=kind, params=params) as backend:
        backend.load()
        return Decoder(backend, tied=tied).run()


@pytest.mark.parametrize("device", [WITH_MEMORY, COPIED], ids=lambda device: device.id)
def test_random_graphs_over_two_devices_read_and_write_in_order(device: Device) -> None:
    for seed in range(40):
        ours, expected = play(in_part(device), seed, layers=2), play("cpu_ref", seed, layers=2)
        for mine, theirs in zip(ours, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")


@pytest.mark.parametrize("layers", [[0, 1], [2, 3, 4], [1, 3], [4], [0, 1, 2, 3]], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["own output", "tied"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q4_0, DType.Q4_K], ids=str)
def test_logits_and_caches_are_those_of_one_device(
    tmp_path: Path, dtype: DType, tied: bool, layers: list[int]
) -> None:
    path = write_decoder(tmp_path, dtype, tied=tied)
    expected = answers(path, "cpu_ref", tied=tied)
    for mine, theirs in zip(answers(path, WithGpu, params(layers), tied=tied), expected, strict=True):
        limit = (
            3e-2 if dtype.is_quantized else 1e-4
        )  # activations of products with quantized weights are rounded
        assert np.abs(mine - theirs).max() <= limit * np.abs(theirs).max()


@pytest.mark.parametrize("tied", [False, True], ids=["own output", "tied"])
def test_weights_and_caches_lie_and_count_with_their_layer(tmp_path: Path, tied: bool) -> None:
    path = write_decoder(tmp_path, DType.F32, tied=tied)
    reports = []
    for alloc in (False, True):
        with backbay.open(path, backend=WithGpu, params=params([2, 3, 4], alloc_memory=alloc)) as backend:
            decoder = Decoder(backend, tied=tied)
            if alloc:
                backend.load()
                buffers = [cache.leaf.buffer for cache in decoder.caches]
                assert [type(buffer) for buffer in buffers] == [LeafBuffer] * 2 + [DeviceBuffer] * 2
            with backend.new_context() as ctx:
                ctx.forward(decoder.trace(ctx, [1, 2], 0)).reserve()
                reports.append(backend.memory())
    block, cache, words = (4 * WIDTH * n for n in (WIDTH, CELLS, WORDS))
    for memory in reports:
        (gpu,) = memory.gpus
        assert [each.size for each in memory.cpu.weights] == [block, block, 0, 0, 0]
        assert [each.size for each in memory.cpu.cache] == [cache, cache, 0, 0, 0]
        assert [each.size for each in gpu.weights] == [0, 0, block, block, words]
        assert [each.size for each in gpu.cache] == [0, 0, cache, cache, 0]
        assert memory.input_weights.size == (0 if tied else words)
        assert min(gpu.graph.size, memory.cpu.graph.size) > 0
    assert reports[0].total() == reports[1].total()


def test_each_op_runs_where_its_layer_lies(tmp_path: Path) -> None:
    path = write_decoder(tmp_path, DType.F32, tied=False)
    with backbay.open(path, backend=WithGpu, params=params([2, 3, 4])) as backend:
        backend.load()
        decoder = Decoder(backend, tied=False)
        with backend.new_context() as ctx:
            ctx.compute(decoder.trace(ctx, [1, 2], 0))
            ((compiled,),) = backend.sessions._compiled.values()
            graph, plan = ctx.recording._graph, ctx.recording._plan
    assert isinstance(plan, OnnxPlan)
    expected = {}
    for node in graph.nodes:
        if node.op is not None:
            layer = -1 if node.placement.layer is None else node.placement.layer
            expected[node.index] = CPU if layer < 2 else GPU
    told = [line.split()[0] for line in plan.report()]
    assert told == list(expected.values())
    owners = compiled.lowered.owners
    for each in compiled.lowered.model.graph.node:
        if each.name in owners:
            on_cpu = [entry.key for entry in each.metadata_props] == [ANNOTATION]
            assert on_cpu == (expected[owners[each.name]] == CPU)
    assert {state.in_place for state in compiled.lowered.states} == {True}


def test_native_code_multiplies_the_weights_of_layers_on_the_cpu(tmp_path: Path, native: Any) -> None:
    path = write_decoder(tmp_path, DType.Q4_0, tied=False)
    with backbay.open(path, backend=WithGpu, params=params([2, 3, 4])) as backend:
        backend.load()
        decoder = Decoder(backend, tied=False)
        decoder.run()
        (gpu,) = backend.memory().gpus
        assert backend.memory().cpu.weights[0].size == decoder.blocks[0].leaf.spec.nbytes
        assert gpu.weights[2].size > decoder.blocks[2].leaf.spec.nbytes
        for known in backend.sessions._compiled.values():
            for compiled in known:
                ops = [node.op_type for node in compiled.lowered.model.graph.node]
                assert ops.count("Products") == 2
                assert ops.count("MatMulNBits") == 3


def test_one_structure_placed_in_two_ways_has_two_sessions() -> None:
    with backbay.open(None, backend=in_part(WITH_MEMORY)) as backend:
        for layer in (0, 1, 0):
            with backend.new_context() as ctx:
                at = ctx.layer(layer)
                x = at.from_floats([1.0, 2.0])
                ctx.compute(y := x.sqr(at))
                assert y.numpy().tolist() == [1, 4]
        assert backend.sessions.created == 2


# -- placed by the engine ----------------------------------------------------------------------------------

TINY = Path(__file__).parents[4] / "examples" / "models" / "backbay-tiny-f16.gguf"
SIZES: dict[str, Any] = {"context": 64, "batch": 16}


def layers_there(**options: Any) -> list[int]:
    """The layers of the tiny model with weights on the GPU; its answer must be right."""
    from backbay_engine import load

    with load(TINY, backend=WithGpu, **SIZES, **options) as llm:
        assert llm.generate("sum 417 268 =", max_tokens=8, temperature=0).text.strip() == "685"
        (gpu,) = llm.memory().gpus
        assert [bool(each.size) for each in gpu.cache] == [bool(each.size) for each in gpu.weights[:-1]] + [
            False
        ]
        return [layer for layer, each in enumerate(gpu.weights) if each.size]


def test_the_engine_puts_the_last_layers_on_the_gpu() -> None:
    pytest.importorskip("backbay_engine")
    (*_, output) = everywhere = layers_there()
    assert everywhere == list(range(output + 1))
    assert layers_there(num_gpu_layers=3) == everywhere[-3:]
    assert layers_there(num_gpu_layers=1) == [output]


def test_a_limit_of_memory_leaves_layers_to_the_cpu(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("backbay_engine")
    from backbay_engine import estimate

    everywhere = layers_there()
    (gpu,) = estimate(TINY, backend=WithGpu, **SIZES).gpus
    block = gpu.weights[1].size + gpu.cache[1].size
    limit = BackendParams(max_memory={GPU: gpu.total() - 2 * block})
    found = layers_there(params=limit)
    assert 0 < len(found) < len(everywhere)
    assert found == everywhere[-len(found) :]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_where_the_gpu_refuses_memory_fewer_layers_lie_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not say how much it has, as CUDA does not to ONNX Runtime: the engine tries all layers first."""
    pytest.importorskip("backbay_engine")
    taken: dict[int, int] = {}  # bytes, by buffer
    make, close = DeviceBuffer.__init__, DeviceBuffer.close

    def take(buffer: DeviceBuffer, device: Device, nbytes: int, *args: Any) -> None:
        if sum(taken.values()) + nbytes > room:
            raise MemoryError("Available memory of the device is smaller")
        taken[id(buffer)] = nbytes
        weakref.finalize(buffer, taken.pop, id(buffer), None)
        make(buffer, device, nbytes, *args)

    def give_back(buffer: DeviceBuffer) -> None:
        taken.pop(id(buffer), None)
        close(buffer)

    monkeypatch.setattr(DeviceBuffer, "__init__", take)
    monkeypatch.setattr(DeviceBuffer, "close", give_back)
    room = 1 << 40
    everywhere = layers_there()
    gc.collect()
    assert not taken
    room = 2 << 20
    found = layers_there()
    assert found == everywhere[len(everywhere) - len(found) :]
    assert 0 < len(found) < len(everywhere)
    assert "no memory for weights of layer" in caplog.text
