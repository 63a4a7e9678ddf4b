"""Layers, caches, memory and faults on the GPUs that ggml reports; `make vulkan` runs this on a GPU made of software.

Two GPUs are needed for some tests (`GGML_VK_VISIBLE_DEVICES=0,0` makes two of one), and a layer of Vulkan that makes a
GPU full or lost for others (`lab/devices/vulkan_faults.c`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from layered_model import CELLS, HEAD, KV_HEADS, LAYERS, Model, generate, write_model
from rpc_servers import Server, serving

import backbay
from backbay import BackendParams, DType, FlashAttention, GPULayers, GPULayersList, NoMemoryError
from backbay_ggml import Ggml
from backbay_ggml.devices.device import driver_name, reported_gpus
from backbay_ggml.library.library import load_library


def _gpu_ids() -> list[str]:
    library, count = load_library(), Counter[str]()
    ids = []
    for handle in reported_gpus(library):
        kind = driver_name(library, handle)
        ids.append(f"{kind}:{count[kind]}")
        count[kind] += 1
    return ids


GPUS = _gpu_ids()
pytestmark = pytest.mark.skipif(not GPUS, reason="ggml reports no GPU here: see `make vulkan`")
needs_two = pytest.mark.skipif(len(GPUS) < 2, reason="ggml reports one GPU: see GGML_VK_VISIBLE_DEVICES=0,0")
needs_faults = pytest.mark.skipif(
    os.environ.get("BACKBAY_VULKAN_FAULTS") != "1", reason="no layer that makes GPUs full or lost"
)
ROOT = Path(__file__).parents[4]
TINY = ROOT / "examples" / "models" / "backbay-tiny-f16.gguf"
EVERY = tuple(range(LAYERS + 1))
CHOICES = {"all": EVERY, "half": (2, 3, LAYERS), "first": (0,), "odd": (1, 3), "none": ()}
CLOSE = 1e-3  # NMSE: the CPU rounds operands of products to q8_0, and a GPU may round them to f16
BATCH = 40  # tokens, more than those from which weights are copied to a GPU


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture(scope="module", params=["untied", "tied"])
def path(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_model(folder / f"{request.param}.gguf", tied=request.param == "tied")


@pytest.fixture(scope="module")
def expected(path) -> list[np.ndarray]:
    with on(path, {}) as backend:
        backend.load()
        return generate(backend)


def on(path: Path, layers: dict[str, tuple[int, ...]], **params) -> backbay.Backend:
    placed = GPULayersList(GPULayers(id, chosen) for id, chosen in layers.items() if chosen)
    return backbay.open(
        path, backend="ggml", params=BackendParams(num_threads=1, gpu_layers=placed, **params)
    )


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    errors = [nmse(*each) for each in zip(found, expected, strict=True)]
    assert max(errors) < CLOSE, errors


# -- layers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES)
def test_results_do_not_depend_on_the_place_of_layers(path, expected, choice) -> None:
    with on(path, {GPUS[0]: CHOICES[choice]}) as backend:
        backend.load()
        assert_close(generate(backend), expected)


@pytest.mark.parametrize("choice", CHOICES)
def test_weights_and_caches_lie_with_their_layers(path, choice) -> None:
    with on(path, {GPUS[0]: CHOICES[choice]}) as backend:
        model = Model(backend)
        with model.store:
            for device in backend.memory().devices:
                there = [(n in CHOICES[choice]) == (device.id == GPUS[0]) for n in EVERY]
                there = there if device.id in (GPUS[0], "CPU:0") else [False] * len(EVERY)
                assert [entry.size > 0 for entry in device.weights] == there
                held = [mine * 2 * 2 * HEAD * KV_HEADS * CELLS for mine in there[:LAYERS]]
                assert [entry.size for entry in device.cache[:LAYERS]] == held


@pytest.mark.parametrize("choice", [FlashAttention.ON, FlashAttention.OFF])
def test_attention_is_right_with_flash_and_without(path, choice) -> None:
    found = []
    for layers in (CHOICES["half"], ()):
        with on(path, {GPUS[0]: layers}, flash_attention=choice) as backend:
            backend.load()
            found.append(generate(backend))
    assert_close(*found)


def test_caches_of_every_offered_dtype_work(path, expected) -> None:
    with on(path, {GPUS[0]: EVERY}) as backend:
        backend.load()
        offered = backend.cache_config().dtypes
        wanted = {DType.F32, DType.F16} | (
            {DType.Q8_0} if backend.flash else set()
        )  # CUDA has it for longer heads
        assert wanted <= set(offered)
        for dtype in offered:
            errors = [nmse(*each) for each in zip(generate(backend, dtype), expected, strict=True)]
            assert max(errors) < (2e-2 if dtype.is_quantized else 1e-3), (dtype, errors)


# -- two devices -----------------------------------------------------------------------------------------


def test_layers_lie_on_a_gpu_and_on_a_server(path, server, expected) -> None:
    layers = {GPUS[0]: (0, 1), "RPC:0": (2, 3, LAYERS)}
    with on(path, layers, options={"rpc": server.endpoint}) as backend:
        backend.load()
        assert_close(generate(backend), expected)
        assert all(
            sum(entry.size for entry in gpu.weights) for gpu in backend.memory().gpus if gpu.id in layers
        )


@needs_two
def test_layers_lie_on_two_gpus(path, expected) -> None:
    for layers in ({GPUS[0]: (0, 1), GPUS[1]: (2, 3, LAYERS)}, {GPUS[0]: (0, 2), GPUS[1]: (1, 3)}):
        with on(path, layers) as backend:
            backend.load()
            assert_close(generate(backend), expected)
            sizes = {gpu.id: [entry.size > 0 for entry in gpu.weights] for gpu in backend.memory().gpus}
            assert sizes == {id: [n in layers[id] for n in EVERY] for id in GPUS[:2]}


@needs_two
def test_layers_are_shared_out_over_two_gpus_of_limited_memory(path, expected) -> None:
    with on(path, {GPUS[0]: EVERY}) as backend:
        whole = sum(entry.size for entry in backend.memory().gpus[0].weights)
    params = BackendParams(num_threads=1, max_memory=dict.fromkeys(GPUS[:2], whole * 2 // 3))
    with backbay.open(path, backend="ggml", params=params) as backend:
        backend.load()
        held = [[entry.size > 0 for entry in gpu.weights] for gpu in backend.memory().gpus[:2]]
        assert all(map(any, held))
        assert not any(both for both in map(all, zip(*held, strict=True)))
        assert_close(generate(backend), expected)


# -- large batches ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["auto", "mapped", "copied"])
def test_products_of_large_batches_go_to_a_gpu_with_their_weights(path, weights) -> None:
    found = {}
    for layers in ((3, LAYERS), ()):
        for size in (31, BATCH):
            with on(path, {GPUS[0]: layers}, options={"weights": weights}) as backend:
                backend.load()
                found[bool(layers), size] = _batch(backend, size)
    for size in (31, BATCH):
        logits, reference = found[True, size][0], found[False, size][0]
        assert nmse(logits, reference) < CLOSE
    few, many = (found[True, size][1] for size in (31, BATCH))
    assert few == "CPU:0"
    assert many == GPUS[0]


@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_experts_are_chosen_by_ids_that_do_not_adjoin(path, tokens) -> None:
    """Nor do the columns. A weight on the GPU keeps the product there."""
    rng = np.random.default_rng(tokens)
    w, x = rng.standard_normal((4, 33, 64)), rng.standard_normal((2, tokens, 64))
    ids = rng.integers(0, 4, (tokens, 4))
    with on(path, {GPUS[0]: EVERY}) as backend:
        backend.load()
        with backend.new_context() as ctx:
            experts = ctx.layer(0).from_floats(w)
            columns = ctx.input().from_floats(x).permute(ctx, 0, 2, 1)
            stepped = ctx.input().from_ints(ids).slice(ctx, 0, 0, 4, 2)
            y = experts.mulmat_id(ctx, columns, stepped)
            ctx.compute(y)
            assert ctx.recording._plan.report()[-1].startswith(f"{GPUS[0]} mul_mat_id")
            expected = np.einsum("tinm,itm->tin", w[ids[:, ::2]], x)
            assert nmse(y.numpy(), expected) < CLOSE


def _batch(backend: backbay.Backend, size: int) -> tuple[np.ndarray, str]:
    """A product with a weight of layer 0, and where it ran: it is the last op, whatever its kernel is called."""
    with backend.new_context() as ctx:
        ctx.set_batch_size(size)
        weight = backend.get("blk.0.ffn_up.weight")
        assert weight is not None
        x = np.random.default_rng(size).standard_normal((size, weight.dim(0))).astype(np.float32)
        y = weight.mulmat(ctx, ctx.input().from_floats(x))
        ctx.compute(y)
        plan = ctx.recording._plan
        return y.numpy(), plan.report()[-1].split()[0]


# -- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["all", "half"])
def test_dry_runs_report_the_memory_of_a_gpu(path, choice) -> None:
    reports = []
    for alloc in (False, True):
        with on(path, {GPUS[0]: CHOICES[choice]}, alloc_memory=alloc) as backend:
            model = Model(backend)
            with model.store, backend.new_context() as ctx:
                ctx.forward(model.logits(ctx, list(range(20)), 0)).reserve()
                reports.append(backend.memory())
                given = backend.scheduler.allocated()
    dry, real = reports
    assert [(*row[:3], row[3].size) for row in dry.rows()] == [(*row[:3], row[3].size) for row in real.rows()]
    assert dry.allocated() == 0
    gpu = next(each for each in real.gpus if each.id == GPUS[0])
    assert gpu.graph.size == pytest.approx(given[GPUS[0]], rel=0.01)


def test_a_limit_of_a_gpus_memory_is_named_and_spares_what_fits() -> None:
    with Ggml(None, BackendParams(max_memory={GPUS[0]: 1 << 20})) as backend, backend.new_context() as ctx:
        small = ctx.layer(0).from_floats(np.arange(8))
        with pytest.raises(NoMemoryError, match=GPUS[0]):
            ctx.layer(0).zeros(DType.F32, 1 << 20)
        y = small.sqr(ctx)
        ctx.compute(y)
        assert y.floats().tolist() == [n * n for n in range(8)]


# -- faults ----------------------------------------------------------------------------------------------

FULL = """
import numpy as np
from backbay import DType, NoMemoryError
from backbay_ggml import Ggml
with Ggml() as backend, backend.new_context() as ctx:
    x = ctx.layer(0).from_floats(np.arange(8))
    try:
        ctx.layer(0).zeros(DType.F32, 64 << 20)
    except NoMemoryError as error:
        print(str(error).splitlines()[0])
    with backend.new_context() as large:
        try:
            y = large.layer(0).zeros(DType.F32, 1 << 20)
            for _ in range(6):
                y = y.concat(large, y, 1)
            large.compute(y)
        except NoMemoryError as error:
            print(str(error).splitlines()[0])
    y = x.sqr(ctx)
    ctx.compute(y)
    print(y.floats().tolist())
"""


@needs_faults
def test_a_full_gpu_is_named_and_what_fits_goes_on() -> None:
    said = _run(FULL, BACKBAY_VULKAN_ROOM=str(128 << 20))
    leaf, graph, computed = said.stdout.strip().splitlines()[-3:]
    assert GPUS[0] in leaf and "no memory for" in leaf
    assert GPUS[0] in graph and "no memory for" in graph
    assert computed == str([float(n * n) for n in range(8)])


LOST = """
import sys
from pathlib import Path
from backbay import BackendParams, GPULayers, GPULayersList
from backbay_engine import load
model, lost, gpu, where = sys.argv[1:]
params = BackendParams(gpu_layers=GPULayersList([GPULayers(gpu, range(7))]))
with load(model, backend="ggml", params=params, worker=where == "worker") as llm:
    ask = lambda: llm.generate("sum 417 268 =", max_tokens=8, temperature=0).text.strip()
    first = llm.worker_pid if where == "worker" else None
    Path(lost).write_text("10")
    print(ask(), ask(), Path(lost).exists(), where == "worker" and llm.worker_pid != first)
"""


@needs_faults
@pytest.mark.parametrize("where", ["here", "worker"])
def test_a_gpu_that_is_lost_in_the_midst_of_a_step_ends_only_the_process_that_uses_it(
    tmp_path, where
) -> None:
    pytest.importorskip("backbay_engine")
    lost = tmp_path / "lost"
    ended = _run(LOST, str(TINY), str(lost), GPUS[0], where, BACKBAY_VULKAN_LOST=str(lost))
    if where == "here":  # ggml throws, through C
        assert ended.returncode == -signal.SIGABRT
        assert "ErrorDeviceLost" in ended.stderr
    else:
        assert ended.stdout.split() == ["685", "685", "False", "True"], ended.stderr


def _run(program: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
