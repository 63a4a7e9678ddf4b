"""Memory: what is allocated is reported, and given back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from gguf_files import write_gguf

import backbay
from backbay import Backend, BackendParams, DType, NoMemoryError
from backbay_ggml import Ggml

TOOLS = Path(__file__).parents[2] / "tools"
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> Path:
    """A model of two layers, with weights of several dtypes."""
    tensors = []
    for name, kind, shape in (
        ("token_embd.weight", "F16", (100, 64)),
        ("blk.0.ffn_up.weight", "Q8_0", (96, 64)),
        ("blk.1.ffn_up.weight", "Q4_0", (96, 64)),
        ("output.weight", "F32", (100, 64)),
    ):
        dtype = GGMLQuantizationType[kind]
        numbers = RNG.standard_normal(shape).astype(np.float32)
        raw = numbers.astype(np.float16) if kind == "F16" else numbers
        data = quants.quantize(numbers, dtype) if kind.startswith("Q") else raw
        tensors.append((name, data, dtype))
    return write_gguf(tmp_path_factory.mktemp("models") / "small.gguf", 2, tensors)


def trace(backend: Backend, ctx, tokens: int):
    """A layer's worth of work on the model, with a cache."""
    x = ctx.input().from_floats(np.ones((tokens, 64)))
    cache = ctx.layer(0).zeros(DType.F16, 96, 512)
    h = backend.get("blk.0.ffn_up.weight").mulmat(ctx, x).silu(ctx)
    cache = h.copy(ctx, cache.slice(ctx, 1, 0, tokens))
    g = backend.get("blk.1.ffn_up.weight").mulmat(ctx, x).softmax(ctx)
    return g.add(ctx, cache.cast(ctx, DType.F32)).rms_norm(ctx)


def test_a_model_agrees_with_the_reference(model_path) -> None:
    found = []
    for name in ("ggml", "cpu_ref"):
        with backbay.open(model_path, backend=name) as backend, backend.new_context() as ctx:
            backend.load()
            ids = ctx.from_ints([3, 99, 0])
            x = backend.get("token_embd.weight").rows(ctx, ids)
            y = (
                backend.get("blk.0.ffn_up.weight")
                .mulmat(ctx, x)
                .concat(ctx, backend.get("blk.1.ffn_up.weight").mulmat(ctx, x), 0)
            )
            z = backend.get("output.weight").mulmat(ctx, x)
            ctx.compute(y, z)
            found.append((y.numpy(), z.numpy(), backend.get("blk.1.ffn_up.weight").bytes()))
    for ours, theirs in zip(*found, strict=True):
        if isinstance(ours, bytes):
            assert ours == theirs
        else:
            np.testing.assert_allclose(ours, theirs, atol=2e-2 * np.abs(theirs).max())


def test_weights_lie_in_the_mapped_file(model_path) -> None:
    with backbay.open(model_path, backend="ggml") as backend:
        backend.load()
        for name in backend.model.tensors:
            mapped = backend.model.data(name)
            assert backend.get(name).leaf.buffer.data.ctypes.data == mapped.ctypes.data


@pytest.mark.parametrize("tokens", [1, 7, 100])
def test_a_dry_run_reports_the_memory_of_a_real_run(model_path, tokens) -> None:
    reports = []
    for alloc in (False, True):
        params = BackendParams(alloc_memory=alloc, num_threads=2)
        with backbay.open(model_path, backend="ggml", params=params) as backend, backend.new_context() as ctx:
            ctx.forward(trace(backend, ctx, tokens)).reserve()
            reports.append(backend.memory())
    dry, real = reports
    assert dry.total() == real.total() == real.allocated()
    assert [(*row[:3], row[3].size) for row in dry.rows()] == [(*row[:3], row[3].size) for row in real.rows()]
    assert dry.allocated() == 0


def test_the_arena_books_the_bytes_that_ggml_allocates(backend) -> None:
    with backend.new_context() as ctx:
        ctx.compute(ctx.from_floats(np.ones((300, 50))).sqr(ctx).neg(ctx).softmax(ctx))
        arena = backend.arena
        assert arena._size == arena._lib.ggml_gallocr_get_buffer_size(arena._allocator, 0) > 0


def test_closing_gives_all_memory_back(backend) -> None:
    contexts = [backend.new_context() for _ in range(4)]
    for n, ctx in enumerate(contexts):
        x = ctx.layer(0).zeros(DType.F32, 1000 * (n + 1))
        ctx.compute(x.sqr(ctx).neg(ctx))
    assert backend.memory().allocated() > 0
    for ctx in contexts:
        ctx.close()
    assert backend.memory().total() == 0


def test_contexts_share_the_memory_of_intermediate_results(backend) -> None:
    def taken() -> int:
        return backend.memory().cpu.graph.size

    def open_one():
        ctx = backend.new_context()
        x = ctx.layer(0).zeros(DType.F32, 10_000)
        y = x.sqr(ctx).neg(ctx).exp(ctx).sum_rows(ctx)
        ctx.compute(y)
        return ctx

    first = open_one()
    alone = taken()
    others = [open_one() for _ in range(5)]
    assert taken() < 1.1 * alone
    for ctx in (first, *others):
        ctx.close()


def test_a_limit_is_kept_and_the_backend_goes_on() -> None:
    params = BackendParams(max_memory={"CPU:0": 100_000})
    with Ggml(None, params) as backend:
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.ones(10_000))
            with pytest.raises(NoMemoryError) as caught:
                ctx.compute(x.repeat(ctx, 1, 10).sqr(ctx))
            assert caught.value.memory.cpu.graph.status.name.lower() == "failed"
        with backend.new_context() as ctx:
            y = ctx.from_floats([1, 2]).sqr(ctx)
            ctx.compute(y)
            assert y.floats().tolist() == [1, 4]
            held = backend.memory().total()
        assert 0 < held < 100_000
        assert backend.memory().total() == 0


REFUSED = """
import resource, numpy as np, backbay
from backbay import BackendParams, NoMemoryError, DType
from backbay_ggml import Ggml
with Ggml(None, BackendParams(num_threads=1)) as backend:
    with backend.new_context() as ctx:  # threads and pools of the library exist from here on
        ctx.compute(ctx.from_floats([1.0]).sqr(ctx))
    with open('/proc/self/statm') as f:
        now = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
    for _ in range(3):
        with backend.new_context() as ctx:
            try:
                KIND
            except NoMemoryError as error:
                print('refused', error.memory.total() > 0)
        with backend.new_context() as ctx:
            y = ctx.from_floats([3.0]).sqr(ctx)
            ctx.compute(y)
            print(y.floats().tolist(), end=' ')
    print(backend.memory().total())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit is set by what is used")
@pytest.mark.parametrize(
    "kind",
    [
        "ctx.zeros(DType.F32, 1 << 28)",
        "ctx.compute(ctx.from_floats([1.0]).repeat(ctx, 0, 1 << 28).sum_rows(ctx))",
        "ctx.compute(ctx.from_floats([1.0]).repeat(ctx, 0, 1 << 28))",
    ],
    ids=["leaf", "arena", "output"],
)
def test_a_refused_allocation_is_an_error_and_the_process_goes_on(kind) -> None:
    code = REFUSED.replace("KIND", kind)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:-1] == [
        "refused True",
        "[9.0] refused True",
        "[9.0] refused True",
        "[9.0] 0",
    ], done.stderr


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def least_growth(work: Callable[[int], None], count: int) -> int:
    """The least growth of the process in three rounds of work: a leak grows in each, an allocator's pages in some."""
    grown = []
    for _ in range(3):
        before = resident()
        work(count)
        grown.append(resident() - before)
    return min(grown)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the process's size")
def test_memory_stays_flat_over_many_contexts(backend) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            with backend.new_context() as ctx:
                x = ctx.from_floats([1, 2, 3])
                ctx.compute(x.sqr(ctx).neg(ctx).add(ctx, x.fill(ctx, 2.0)))

    some(200)
    assert least_growth(some, 1000) < 1 << 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the process's size")
@pytest.mark.thorough
def test_memory_stays_flat_over_many_models(model_path) -> None:
    def some(count: int) -> None:
        for _ in range(count):
            with backbay.open(model_path, backend="ggml") as backend, backend.new_context() as ctx:
                backend.load()
                ctx.compute(trace(backend, ctx, 3))

    some(10)
    assert least_growth(some, 40) < 1 << 20
