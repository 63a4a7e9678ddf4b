"""Several devices: the CPU, and devices of RPC servers in child processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from layered_model import CELLS, HEAD, KV_HEADS, LAYERS, Model, generate, write_model
from rpc_servers import Server, serving

import backbay
from backbay import (
    BackendParams,
    CancelledError,
    Debug,
    DType,
    FlashAttention,
    GPULayers,
    GPULayersList,
    GuardZoneError,
    OptionError,
)
from backbay_ggml import Ggml
from backbay_ggml.devices.device import hardware_id
from backbay_ggml.devices.layer_assignment import SPARE
from backbay_ggml.devices.rpc_servers import session_lock
from backbay_ggml.library.abi import NULL, ffi
from backbay_ggml.library.library import load_library

pytestmark = pytest.mark.skipif(
    load_library().lib.ggml_backend_reg_by_name(b"RPC") == NULL, reason="this library has no RPC"
)
LAYERS_ON = {
    "all": [("RPC:0", range(LAYERS + 1))],
    "half": [("RPC:0", (2, 3, LAYERS))],
    "first": [("RPC:0", (0,))],
    "odd": [("RPC:0", (1, 3))],
    "two": [("RPC:0", (0, 1)), ("RPC:1", (2, 3, LAYERS))],
    "none": [],
}


@pytest.fixture(scope="module", autouse=True)
def kernels_of_ggml(without_native: None) -> None:
    """As on the servers: code of ours rounds in other places."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(devices=2) as made:
        yield made


@pytest.fixture(scope="module", params=["untied", "tied"])
def path(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / f"{request.param}.gguf", tied=request.param == "tied")


def on(server: Server, layers: str | None = None, **params) -> BackendParams:
    """Parameters with the server's devices, and layers there; the CPU uses mapped weights as the server does."""
    gpus = None if layers is None else GPULayersList(GPULayers(*each) for each in LAYERS_ON[layers])
    return BackendParams(
        num_threads=1, gpu_layers=gpus, options={"rpc": server.endpoint, "weights": "mapped"}, **params
    )


def opened(path: Path, params: BackendParams) -> backbay.Backend:
    return backbay.open(path, backend="ggml", params=params)


@pytest.fixture(scope="module")
def expected(path) -> list[np.ndarray]:
    with opened(path, BackendParams(num_threads=1, options={"weights": "mapped"})) as backend:
        backend.load()
        return generate(backend)


def test_devices_are_listed_with_their_memory(server) -> None:
    with Ggml(None, on(server)) as backend:
        cpu, *others = backend.devices()
        assert (cpu.id, cpu.is_gpu) == ("CPU:0", False)
        assert [(device.id, device.is_gpu) for device in others] == [("RPC:0", True), ("RPC:1", True)]
        assert all(0 < device.free_memory <= device.total_memory for device in (cpu, *others))


@pytest.mark.parametrize("layers", LAYERS_ON)
def test_results_do_not_depend_on_the_devices_of_layers(path, server, expected, layers) -> None:
    with opened(path, on(server, layers)) as backend:
        backend.load()
        for ours, cpu in zip(generate(backend), expected, strict=True):
            np.testing.assert_allclose(ours, cpu, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", LAYERS_ON)
def test_weights_and_caches_lie_with_their_layers(path, server, layers) -> None:
    with opened(path, on(server, layers)) as backend:
        model = Model(backend)
        memory = backend.memory()
        where = {layer: id for id, chosen in LAYERS_ON[layers] for layer in chosen}
        for device in memory.devices:
            own = [where.get(n, "CPU:0") == device.id for n in range(LAYERS + 1)]
            assert [entry.size > 0 for entry in device.weights] == own
            assert [entry.size for entry in device.cache[:LAYERS]] == [
                mine * 2 * 2 * HEAD * KV_HEADS * CELLS for mine in own[:LAYERS]
            ]
        assert memory.input_weights.size == backend.model.tensors["token_embd.weight"].nbytes
        model.store.close()


@pytest.mark.parametrize("layers", ["all", "half", "two"])
def test_dry_runs_report_the_memory_of_devices(path, server, layers) -> None:
    reports = []
    for alloc in (False, True):
        with opened(path, on(server, layers, alloc_memory=alloc)) as backend:
            model = Model(backend)
            with backend.new_context() as ctx, backend.new_context() as small:
                ctx.forward(model.logits(ctx, list(range(20)), 0)).reserve()
                small.forward(model.logits(small, [1], 0)).reserve()
                reports.append(backend.memory())
                given = backend.scheduler.allocated()
            model.store.close()
    dry, real = reports
    assert [(*row[:3], row[3].size) for row in dry.rows()] == [(*row[:3], row[3].size) for row in real.rows()]
    assert dry.allocated() == 0
    for gpu in real.gpus:
        assert gpu.graph.size == pytest.approx(given.get(gpu.id, 0), rel=0.01)


def test_a_plan_reports_the_device_of_each_op(path, server) -> None:
    with opened(path, on(server, "half")) as backend:
        backend.load()
        model = Model(backend)
        with model.store, backend.new_context() as ctx:
            ctx.compute(model.logits(ctx, [1, 2], 0))
            plan = ctx.recording._plan
            said = [line.split()[0] for line in plan.report()]
            first = said.index("RPC:0")
            assert set(said[:first]) == {"CPU:0"}
            assert said.count("RPC:0") > said.count("CPU:0") / 2
            scheduler = backend.scheduler
            with session_lock(), scheduler.session():
                assert backend.library.lib.ggml_backend_sched_get_n_splits(scheduler._scheduler) <= 6


@pytest.mark.parametrize("layers", ["all", "half", "two"])
def test_steps_of_one_plan_keep_all_that_cuda_graphs_compare(path, server, layers) -> None:
    """CUDA records a graph anew if a tensor, its address, its extents, its strides or those of an operand change.

    ggml compares nothing where the scheduler has not divided the plan again, so that is counted, too.
    """
    with opened(path, on(server, layers)) as backend:
        backend.load()
        model = Model(backend)
        with model.store, backend.new_context() as ctx:
            y = model.logits(ctx, [1], 0)
            ctx.compute(y)
            plan, before = ctx.recording._plan, y.numpy()
            tensors, placed = _all_of(plan), []
            backend.scheduler._place = placed.append
            for token in (7, 90):
                model.tokens.from_ints([token])
                ctx.compute(y)
                assert ctx.recording._plan is plan
                assert _all_of(plan) == tensors
                assert not np.array_equal(y.numpy(), before)
            assert not placed


def _all_of(plan: Any) -> list[bytes]:
    """Each op of a plan, and its operands: their places in memory, extents, strides and all else."""
    found = []
    for op in plan._ops:
        tensors = [op, *(source for source in op.src if source != NULL)]
        assert all(tensor.data != NULL for tensor in tensors)
        found += [bytes(ffi.buffer(tensor, ffi.sizeof("ggml_tensor"))) for tensor in tensors]
    return found


def test_computing_again_after_another_context_takes_new_data(path, server, expected) -> None:
    with opened(path, on(server, "half")) as backend:
        backend.load()
        model = Model(backend)
        with model.store, backend.new_context() as one, backend.new_context() as other:
            y = model.logits(one, [5, 1, 90, 7, 7], 0)
            x = other.from_floats(np.ones(5000))
            z = x.sqr(other).neg(other).sum_rows(other)
            for factor in (1, 2, 3):
                one.compute(y)
                x.from_floats(np.full(5000, factor))
                other.compute(z)
                assert z.floats().tolist() == [-5000 * factor * factor]
                np.testing.assert_allclose(y.numpy(), expected[0], rtol=1e-4, atol=1e-4)
            assert (one.counters.compilations, other.counters.compilations) == (1, 1)


@pytest.mark.parametrize("choice", [FlashAttention.ON, FlashAttention.OFF, FlashAttention.AUTO])
def test_attention_is_right_with_flash_and_without(path, server, choice) -> None:
    found = []
    for params in (on(server, "half", flash_attention=choice), on(server, "none", flash_attention=choice)):
        with opened(path, params) as backend:
            backend.load()
            assert backend.cache_config().permuted_v is (choice is FlashAttention.OFF)
            found.append(generate(backend))
    for ours, cpu in zip(*found, strict=True):
        np.testing.assert_allclose(ours, cpu, rtol=1e-4, atol=1e-4)


def test_caches_of_every_offered_dtype_work(path, server, expected) -> None:
    with opened(path, on(server, "all")) as backend:
        backend.load()
        offered = backend.cache_config().dtypes
        assert {DType.F32, DType.F16, DType.Q8_0} <= set(offered)
        for dtype in offered:
            for ours, cpu in zip(generate(backend, dtype), expected, strict=True):
                np.testing.assert_allclose(ours, cpu, atol=0.5 if dtype is DType.Q4_0 else 0.1)


def test_gpus_take_the_layers_that_fit_from_the_output_down(path, server) -> None:
    with opened(path, on(server, "all")) as backend:
        *_, block, output = (entry.size for entry in backend.memory().gpus[0].weights)
    for room, layers in ((output + block, 2), (block + output // 2, 1), (output // 2, 0)):
        limits = {"RPC:0": room * SPARE // (SPARE - 1) + 1, "RPC:1": 0}
        with opened(path, on(server, max_memory=limits)) as backend:
            held = [entry.size > 0 for entry in backend.memory().gpus[0].weights]
            assert held == [False] * (LAYERS + 1 - layers) + [True] * layers
    with opened(path, on(server)) as backend:
        assert all(sum(gpu.weights[n].size for gpu in backend.memory().gpus) > 0 for n in range(LAYERS + 1))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([("RPC:0", (0, 1)), ("RPC:1", (1,))], "layer 1 on RPC:0 and on RPC:1"),
        ([("RPC:0", (LAYERS + 1,))], f"layer {LAYERS + 1}"),
        ([("RPC:7", (0,))], "no device 'RPC:7'"),
    ],
)
def test_layers_that_cannot_be_placed_are_refused(path, server, layers, message) -> None:
    gpus = GPULayersList(GPULayers(*each) for each in layers)
    with pytest.raises(OptionError, match=message):
        opened(path, BackendParams(gpu_layers=gpus, options={"rpc": server.endpoint}))


def test_more_devices_than_ggml_schedules_are_refused() -> None:
    gpus = GPULayersList(GPULayers(f"RPC:{n}", (n,)) for n in range(16))
    with serving(devices=16) as server:
        params = BackendParams(gpu_layers=gpus, options={"rpc": server.endpoint})
        with Ggml(None, params) as backend, backend.new_context() as ctx:
            y = ctx.layer(0).from_floats([1.0]).sqr(ctx)
            with pytest.raises(OptionError, match="16 devices"):
                ctx.compute(y)


def test_without_a_model_only_inputs_are_on_the_cpu(server) -> None:
    with Ggml(None, on(server)) as backend, backend.new_context() as ctx:
        w = ctx.from_floats(np.arange(12), 4, 3)
        x = ctx.input().from_floats(np.ones(8), 4, 2)
        y = w.mulmat(ctx, x).add(ctx, ctx.from_floats([1, 2, 3]))
        ctx.compute(y)
        assert y.numpy().tolist() == [[7, 24, 41]] * 2
        assert ctx.recording._plan.report()[0].startswith("RPC:0 mul_mat")
        assert w.floats().tolist() == list(range(12))
        assert [leaf.buffer.device.id for leaf in ctx.recording.leaves] == ["RPC:0", "CPU:0", "RPC:0"]


@pytest.mark.parametrize("count", [29, 31, 100])
def test_a_run_with_more_inputs_than_the_scheduler_takes_is_divided(server, count) -> None:
    with Ggml(None, on(server)) as backend, backend.new_context() as ctx:
        total = ctx.from_floats(np.zeros(4))
        parts = [ctx.input().from_floats(np.full(4, n)) for n in range(count)]
        for first, second in zip(parts[::2], parts[1::2], strict=False):
            total = total.add(ctx, first.mul(ctx, second))
        ctx.compute(total)
        expected = sum(n * (n + 1) for n in range(0, count - 1, 2))
        assert total.floats().tolist() == [expected] * 4


def test_operands_with_overlapping_elements_move_between_devices(server) -> None:
    with Ggml(None, on(server)) as backend, backend.new_context() as ctx:
        x = ctx.input().from_floats([1, 2, 3, 4])
        windows = x.view(ctx, 0, (2, 3), (4,))  # (2, 3): each starts one later than the one before
        y = windows.add(ctx, ctx.from_floats(np.zeros((3, 2))))
        z = ctx.from_floats(np.arange(6), 3, 2).interpolate(ctx, [6, 4])
        ctx.compute(y, z)
        assert y.numpy().tolist() == [[1, 2], [2, 3], [3, 4]]
        assert z.numpy()[:, 0].tolist() == [0, 0, 3, 3]


def test_guards_are_checked_on_devices(server) -> None:
    params = on(server, debug=Debug(poison=True, guard_bytes=64))
    with Ggml(None, params) as backend, backend.new_context() as ctx:
        x = ctx.from_floats([1, 2, 3])
        y = x.sqr(ctx).copy(ctx, ctx.empty(DType.F16, 3))
        ctx.compute(y)
        assert y.floats().tolist() == [1, 4, 9]
        zone = x.leaf.buffer._zones[1]
        x.leaf.buffer._set(zone, np.zeros(zone.ne[0], np.uint8))
        with pytest.raises(GuardZoneError):
            ctx.compute(y)


def test_closing_gives_all_memory_back(server) -> None:
    with Ggml(None, on(server)) as backend:
        contexts = [backend.new_context() for _ in range(4)]
        for n, ctx in enumerate(contexts):
            x = ctx.layer(0).zeros(DType.F32, 1000 * (n + 1))
            ctx.compute(x.sqr(ctx).neg(ctx))
        assert backend.memory().gpus[0].allocated() > 10_000 * 4
        for ctx in contexts:
            ctx.close()
        assert backend.memory().total() == 0


def test_two_backends_share_a_server_from_two_threads(path, server, expected) -> None:
    def work(layers: str, found: dict[str, bool]) -> None:
        with opened(path, on(server, layers)) as backend:
            backend.load()
            found[layers] = all(
                np.allclose(ours, cpu, rtol=1e-4, atol=1e-4)
                for _ in range(3)
                for ours, cpu in zip(generate(backend), expected, strict=True)
            )

    found: dict[str, bool] = {}
    threads = [threading.Thread(target=work, args=(layers, found)) for layers in ("all", "half", "odd")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"all": True, "half": True, "odd": True}


def test_a_cancelled_compute_can_be_run_again(server) -> None:
    with Ggml(None, on(server, "none")) as backend:
        assert not backend.assignment.others
    with Ggml(None, on(server)) as backend, backend.new_context() as ctx:
        host = ctx.input()
        w = host.zeros(DType.F32, 512, 512)
        y = w
        for _ in range(200):
            y = w.mulmat(host, y)
        result = y.add(ctx, ctx.zeros(DType.F32, 512, 512))
        ctx.reserve()
        cancel = threading.Event()
        timer = threading.Timer(0.02, cancel.set)
        timer.start()
        with pytest.raises(CancelledError):
            ctx.compute(result, cancel=cancel)
        ctx.compute(result, cancel=threading.Event())
        assert not result.floats().any()


def test_a_device_says_its_address_where_ggml_does() -> None:
    address = ffi.new("char[]", b"0000:c1:00.0")

    def tell(handle: object, facts: Any) -> None:
        facts.device_id = address

    lib = SimpleNamespace(ggml_backend_dev_get_props=tell)
    assert hardware_id(SimpleNamespace(number=(0, 15, 3), lib=lib), NULL) == "0000:c1:00.0"
    assert hardware_id(SimpleNamespace(number=(0, 9, 0), lib=lib), NULL) is None
    assert hardware_id(load_library(), load_library().cpu) is None


@pytest.mark.parametrize("dtype", [DType.F16, DType.I32], ids=str)
def test_the_last_of_several_rows_for_one_place_stays(server, dtype) -> None:
    placed = GPULayersList([GPULayers("RPC:0", range(1))])
    params = BackendParams(gpu_layers=placed, options={"rpc": server.endpoint})
    data = np.arange(4 * 4 * 5).reshape(4, 4, 5)
    with Ggml(None, params) as backend, backend.new_context() as ctx:
        there = ctx.layer(0)
        table, source = there.zeros(dtype, 5, 6, 4), there.empty(dtype, 5, 4, 4)
        source = source.from_ints(data) if dtype.is_integer else source.from_floats(data)
        ids = ctx.input().empty(DType.I32, 4, 2)
        written, wanted = table.set_rows(ctx, source, ids), np.zeros((4, 6, 5))
        for chosen, repeats in (([[3, 1, 2, 0], [0, 1, 3, 2]], False), ([[3, 1, 3, 3], [0, 1, 1, 2]], True)):
            ids.from_ints(chosen)
            ctx.compute(written)
            for each, row in np.ndindex(4, 4):
                wanted[each, chosen[each % 2][row]] = data[each, row]
            np.testing.assert_array_equal(written.numpy(), wanted)
            assert any("get_rows" in line for line in ctx.recording._plan.report()) == repeats
