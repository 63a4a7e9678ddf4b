"""All memory is booked, limits hold, and closing gives memory back."""

from __future__ import annotations

import json
import subprocess
import sys
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_file import quantized, write_model

import backbay
from backbay import AllocationStatus, BackendParams, DType, NoMemoryError
from backbay.memory.host_memory import anonymous_memory
from backbay_native import OFF
from backbay_onnx.session.native import VARIABLE
from backbay_onnx.session.runtime import load_runtime
from backbay_onnx.session.session import has_arena

K, N = 1024, 2048


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = quantized(np.random.default_rng(1), DType.Q4_0, K, N)
    folder = tmp_path_factory.mktemp("memory")
    return write_model(folder / "model.gguf", {"blk.0.w": (DType.Q4_0, raw)}, block_count=1)


def test_a_limit_is_kept_and_the_failing_entry_marked() -> None:
    params = BackendParams(max_memory={"CPU:0": 1 << 20})
    with backbay.open(None, backend="onnx", params=params) as backend, backend.new_context() as ctx:
        x = ctx.zeros(DType.F32, 1000, 100)
        ctx.forward(x.repeat(ctx, 1, 3))
        with pytest.raises(NoMemoryError) as caught:
            ctx.reserve()
        assert caught.value.memory.cpu.graph.status is AllocationStatus.Failed
        held = backend.memory().total()
        y = x.sum_rows(ctx)  # what fits still runs
        with backend.new_context() as other:
            other.compute(x.sum_rows(other))
        assert backend.memory().total() == held
        assert y.shape == (1, 100)


def test_weights_that_do_not_fit_are_refused_when_opening(path: Path) -> None:
    with pytest.raises(NoMemoryError) as caught:
        backbay.open(path, backend="onnx", params=BackendParams(max_memory={"CPU:0": 1000}))
    assert caught.value.memory.cpu.weights[0].status is AllocationStatus.Failed


def test_a_measured_model_reports_what_a_loaded_one_takes(path: Path) -> None:
    totals = []
    for alloc in (False, True):
        with backbay.open(path, backend="onnx", params=BackendParams(alloc_memory=alloc)) as backend:
            w = backend.get("blk.0.w")
            assert w is not None
            if alloc:
                backend.load()
            with backend.new_context() as ctx:
                ctx.forward(w.mulmat(ctx, ctx.empty(DType.F32, K, 4))).reserve()
                totals.append(backend.memory().total())
    assert totals[0] == totals[1] > path.stat().st_size


def test_the_floats_of_a_weight_are_booked_with_the_weights_alone(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "half.gguf", {"blk.0.w": (DType.F16, np.ones((64, 32), np.float16))}, block_count=1
    )
    with backbay.open(path, backend="onnx") as backend, backend.new_context() as ctx:
        backend.load()
        w = backend.get("blk.0.w")
        assert w is not None
        ctx.compute(w.sqr(ctx))
        assert backend.memory().cpu.weights[0].size == (2 + 4) * w.size
        assert (
            backend.memory().cpu.graph.size == (4 + 2) * w.size
        )  # the result, before and after it is rounded


def test_a_closed_context_gives_its_memory_back() -> None:
    with backbay.open(None, backend="onnx") as backend:
        for _ in range(3):
            with backend.new_context() as ctx:
                ctx.compute(ctx.zeros(DType.F32, 64, 64).sqr(ctx))
                assert backend.memory().total() > 0
            assert backend.memory().total() == 0


def multiply(backend: Any, *, twice: bool = False) -> None:
    """A product in one of two structures."""
    w = backend.get("blk.0.w")
    with backend.new_context() as ctx:
        y = w.mulmat(ctx, ctx.zeros(DType.F32, K, 3))
        ctx.compute(y.add(ctx, y) if twice else y)


def test_packed_copies_are_booked_once_for_each_structure_and_dropped_when_unused(
    path: Path, without_native: None
) -> None:
    packed = K * N * 3 // 4  # 4 bits, and two float32 for each 32
    with backbay.open(path, backend="onnx") as backend:
        backend.load()
        loaded = backend.memory().total()
        for _ in range(2):
            multiply(backend)
            assert backend.memory().total() == loaded + packed
        multiply(backend, twice=True)
        assert backend.memory().total() == loaded + 2 * packed
        w = backend.get("blk.0.w")
        assert w is not None
        for n in range(3):
            with backend.new_context() as ctx:
                y = w.mulmat(ctx, ctx.zeros(DType.F32, K, 2))
                for _ in range(n + 2):
                    y = y.sqr(ctx)
                ctx.compute(y)
        assert backend.memory().total() == loaded + 2 * packed


def test_a_session_that_a_plan_uses_is_kept(path: Path) -> None:
    with backbay.open(path, backend="onnx") as backend:
        backend.load()
        w = backend.get("blk.0.w")
        assert w is not None
        kept = []
        for n in range(4):
            ctx = backend.new_context()
            y = w.mulmat(ctx, ctx.zeros(DType.F32, K, 2))
            for _ in range(n):
                y = y.sqr(ctx)
            ctx.compute(y)
            kept.append((ctx, y))
        for ctx, y in kept:
            ctx.compute(y)
        assert backend.sessions.created == 4


def test_a_limit_holds_for_packed_copies(path: Path, without_native: None) -> None:
    limit = K * N * 5 // 8 + K * N // 2
    with backbay.open(path, backend="onnx", params=BackendParams(max_memory={"CPU:0": limit})) as backend:
        backend.load()
        loaded = backend.memory().total()
        with pytest.raises(NoMemoryError) as caught:
            multiply(backend)
        assert caught.value.memory.cpu.weights[0].status is AllocationStatus.Failed
        assert backend.memory().total() == loaded


def test_graphs_that_run_one_at_a_time_share_working_memory() -> None:
    with backbay.open(None, backend="onnx") as backend:

        def graph(count: int) -> Any:
            ctx = backend.new_context()
            y = ctx.zeros(DType.F32, 64, count).repeat(ctx, 0, 8).sum_rows(ctx)
            ctx.forward(y).reserve()
            return ctx

        graph(64).close()
        at_rest = backend.memory().total()
        small, large = graph(64), graph(4096)
        booked = backend.memory().cpu.graph.size
        assert booked > 4 * 512 * 4096
        assert booked < 4 * (512 + 64 + 1) * (4096 + 64) + 4096
        large.close()
        assert backend.memory().cpu.graph.size < booked / 8
        small.close()
        assert backend.memory().total() == at_rest


def test_the_working_memory_of_a_step_does_not_grow_with_the_cache() -> None:
    booked = []
    for rows in (64, 4096):
        with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
            cache = ctx.layer(0).zeros(DType.F32, 64, rows, row_axis=1)
            new = ctx.zeros(DType.F32, 64, 1).sqr(ctx)
            held = cache.set_rows(ctx, new, ctx.from_ints([3])).reshape(ctx, 32, 2, rows).slice(ctx, 2, 0, 32)
            ctx.forward(held.rms_norm(ctx)).reserve()
            booked.append(backend.memory().cpu.graph.size)
    assert booked[0] == booked[1]


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the largest real memory"
)
@pytest.mark.parametrize("native", ["", OFF], ids=["native", "without"])
@pytest.mark.thorough
def test_booked_working_memory_is_what_a_run_takes(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if native:
        monkeypatch.setenv(VARIABLE, native)
    told = subprocess.run(
        [sys.executable, Path(__file__).with_name("peaks.py")], capture_output=True, text=True, check=True
    )
    for name, (booked, taken) in json.loads(told.stdout).items():
        assert taken < 1.1 * booked + (2 << 20), name
        assert booked < 2 * taken + (2 << 20), name


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults, and reads resident memory")
def test_blocks_that_a_run_frees_serve_its_later_nodes_and_go_back_after_it() -> None:
    """Else the system would clear the pages of each block, here 16 blocks of 8 MiB."""
    import resource

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
        x = y = ctx.from_floats(np.ones((1024, 2048), np.float32))
        for _ in range(8):
            y = y.tanh(ctx).add(ctx, x)
        total = y.sum_rows(ctx)
        ctx.compute(total)
        before, held = faults(), anonymous_memory()
        ctx.compute(total)
        assert faults() - before < 5 * (8 << 20) // PAGESIZE
        assert anonymous_memory() - held < 4 * (8 << 20)  # blocks may hold what other tests' sessions keep


def test_where_no_arena_can_be_made_sessions_run_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*args: Any) -> None:
        raise RuntimeError("an allocator is already registered")

    monkeypatch.setattr(load_runtime(), "create_and_register_allocator", refusing)
    has_arena.cache_clear()
    try:
        with backbay.open(None, backend="onnx") as backend, backend.new_context() as ctx:
            y = ctx.from_floats(np.ones((1024, 512), np.float32)).add(ctx, ctx.from_floats([1.0]))
            ctx.compute(y)
            assert (y.numpy() == 2).all()
        assert not has_arena()
    finally:
        has_arena.cache_clear()
