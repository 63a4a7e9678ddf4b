"""Backends that run each graph as one pure function over the arrays of an engine."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from backbay import BackbayError, BackendParams, CancelledError, Debug, DType, NoMemoryError, ops
from backbay.plugin import ArrayEngine, ArrayProgram, GraphBackend, GraphFunction, decode, encode

Array = np.ndarray[Any, Any]
KERNELS: dict[Any, Callable[..., Any]] = {
    ops.add: lambda x, t2: x + np.broadcast_to(t2, x.shape),
    ops.sqrt: np.sqrt,
    ops.contiguous: lambda x, *shape: x,
    ops.copy: lambda x, dst: x.reshape(dst.shape),
    ops.rows: lambda x, ids: x[..., ids.reshape(-1), :],
}


class Engine(ArrayEngine):
    """NumPy with the default methods; arrays of the engine are read-only, as those of a functional engine."""

    xp = np

    def __init__(self) -> None:
        self.compiled_functions = 0

    def to_engine(self, data: Array, dtype: DType) -> Array:
        data.flags.writeable = False
        return data

    def to_host(self, storage: Array) -> Array:
        return storage

    def numbers(self, stored: Array, dtype: DType) -> Array:
        return decode(stored, dtype).astype(np.float32)

    def stored(self, numbers: Array, dtype: DType) -> Array:
        return encode(numbers, dtype)

    def compiled(self, program: ArrayProgram) -> GraphFunction:
        self.compiled_functions += 1
        return program


class Functional(GraphBackend):
    contract_version = "1.2"
    kernels = KERNELS
    engine = Engine()


@pytest.fixture
def backend() -> Any:
    with Functional() as opened:
        opened.engine = Engine()
        yield opened


def test_graphs_of_equal_shapes_share_a_program_also_between_backends(backend: Functional) -> None:
    with Functional() as other:
        other.engine = backend.engine
        for one in (backend, other):
            for shape in ((3, 2), (6,), (3, 2)):
                with one.new_context() as ctx:
                    x = ctx.from_floats(np.arange(6.0), *shape)
                    y = x.add(ctx, x)
                    ctx.compute(y)
                    assert y.floats().tolist() == [0, 2, 4, 6, 8, 10]
    assert backend.engine.compiled_functions == 2


def test_a_backend_with_other_kernels_has_programs_of_its_own(backend: Functional) -> None:
    class Doubled(Functional):
        kernels = {**KERNELS, ops.sqrt: lambda x: 2 * np.sqrt(x)}

    with Doubled() as other:
        other.engine = backend.engine
        found = []
        for one in (backend, other):
            with one.new_context() as ctx:
                y = ctx.from_floats([4.0, 9.0]).sqrt(ctx)
                ctx.compute(y)
                found.append(y.floats().tolist())
    assert found == [[2, 3], [4, 6]]


@pytest.mark.parametrize("low", [0, 1])
def test_a_write_into_a_view_of_a_leaf_is_seen_by_later_readers_and_by_outputs(
    backend: Functional, low: int
) -> None:
    with backend.new_context() as ctx:
        cache = ctx.from_floats(np.zeros((3, 4), np.float32))
        x = ctx.from_floats(np.arange(1.0, 7.0), 2, 3)
        part = cache.slice(ctx, 0, low, low + 2)  # gaps between its rows
        before = part.contiguous(ctx)
        after = x.copy(ctx, part).add(ctx, x)
        ctx.compute(before, after, cache.permute(ctx, 1, 0))
        assert before.floats().tolist() == [0] * 6
        assert after.floats().tolist() == [2, 4, 6, 8, 10, 12]
        expected = np.zeros((3, 4), np.float32)
        expected[:, low : low + 2] = np.arange(1, 7).reshape(3, 2)
        assert (cache.numpy() == expected).all()


def test_a_cancelled_run_writes_nothing(backend: Functional) -> None:
    with backend.new_context() as ctx:
        cache, x = ctx.zeros(DType.F32, 2), ctx.from_floats([1.0, 2.0])
        cancelled = threading.Event()
        cancelled.set()
        with pytest.raises(CancelledError):
            ctx.forward(x.copy(ctx, cache)).compute(cancel=cancelled)
        assert cache.floats().tolist() == [0, 0]


def test_poison_is_read_and_takes_no_memory_beside_the_data_that_replace_it() -> None:
    with Functional(params=BackendParams(debug=Debug(poison=True))) as backend, backend.new_context() as ctx:
        x = ctx.empty(DType.F32, 3)
        y = ctx.empty(DType.F32, 3)
        ctx.compute(y.contiguous(ctx))
        assert x.bytes() == y.bytes() == b"\xff" * 12
        data = np.ones(1 << 20, np.float32)
        tracemalloc.start()
        ctx.from_floats(data)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 1.5 * data.nbytes


@pytest.mark.parametrize("most", [1, 2, 100])
def test_a_program_runs_in_parts(backend: Functional, most: int) -> None:
    class Parted(Engine):
        def compiled(self, program: ArrayProgram) -> GraphFunction:
            def run(read: Sequence[Array], written: Sequence[Array]) -> tuple[list[Array], list[Array]]:
                leaves, own = (
                    dict(zip(program.read, read, strict=True)),
                    dict(zip(program.written, written, strict=True)),
                )
                for part in program.parts(most):
                    own = part(leaves, own)
                return program.results(leaves, own)

            return run

    backend.engine = Parted()
    with backend.new_context() as ctx:
        cache, x = ctx.zeros(DType.F32, 2, 2), ctx.from_floats([4.0, 9.0])
        root = x.sqrt(ctx)
        row = root.copy(ctx, cache.slice(ctx, 1, 1, 2).reshape(ctx, 2))
        ctx.compute(row.add(ctx, root).add(ctx, x))
        assert cache.floats().tolist() == [0, 0, 2, 3]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.Q8_0])
def test_stored_numbers_come_to_a_kernel_as_f32(backend: Functional, dtype: DType) -> None:
    values = np.tile([1.0, -4.0, 127.0, 0.0], 16).astype(np.float32)
    with backend.new_context() as ctx:
        table = ctx.empty(dtype, 32, 2).from_floats(values)
        ids = ctx.from_ints([1])
        y = table.rows(ctx, ids)
        ctx.compute(y)
        assert y.floats().tolist() == values[:32].tolist()


@pytest.mark.parametrize("donates", [False, True])
def test_booked_are_results_written_leaves_and_converted_operands(donates: bool) -> None:
    class Donating(Engine):
        pass

    Donating.donates = donates
    for params in (BackendParams(), BackendParams(alloc_memory=False)):
        with Functional(None, params) as backend:
            backend.engine = Donating()
            with backend.new_context() as ctx:
                cache, x = ctx.empty(DType.F32, 1024), ctx.empty(DType.F16, 1024)
                leaves = backend.memory().total()
                ctx.forward(x.sqrt(ctx).copy(ctx, cache)).reserve()
                result, operand_and_result, conversion = 2048, 2 * 4096, 4096
                new_value = 0 if donates else 4096
                booked = backend.memory().total() - leaves
                assert booked == result + max(operand_and_result, conversion) + new_value
            assert backend.memory().total() == 0


def test_what_the_limit_forbids_is_refused_before_the_engine_runs() -> None:
    with (
        Functional(None, BackendParams(max_memory={"CPU:0": 10_000})) as backend,
        backend.new_context() as ctx,
    ):
        x = ctx.empty(DType.F32, 2000)
        with pytest.raises(NoMemoryError):
            ctx.compute(x.sqrt(ctx))


def test_a_refused_workspace_leaves_no_results_booked() -> None:
    """A kernel of floats works in a copy of its operand, so that results fit, and the workspace does not."""
    with (
        Functional(None, BackendParams(max_memory={"CPU:0": 14_000})) as backend,
        backend.new_context() as ctx,
    ):
        x = ctx.empty(DType.F16, 2000)
        for _ in range(3):
            with pytest.raises(NoMemoryError):
                ctx.compute(x.sqrt(ctx))
        assert backend.memory().total() == x.nbytes


def test_a_kernel_with_other_parameters_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(BackbayError, match="does not match its op sqrt"):

        class Wrong(Functional):
            kernels = {ops.sqrt: lambda x, y: x}


VIEWS: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]] = [
    (0, (24,), (1,)),
    (3, (2, 5), (5, 1)),
    (0, (4, 6), (1, 4)),
    (1, (2, 3, 2), (12, 2, 1)),
    (2, (3, 4), (0, 1)),
    (5, (4, 2), (3, 2)),
    (4, (1, 1), (9, 9)),
]


@pytest.mark.parametrize(("offset", "shape", "strides"), VIEWS)
def test_the_default_views_are_those_of_numpy(
    offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    engine, storage = Engine(), np.arange(24.0)
    bytes_apart = [stride * 8 for stride in strides]
    expected = np.lib.stride_tricks.as_strided(storage[offset:], shape, bytes_apart)
    assert (engine.view(storage, offset, shape, strides) == expected).all()
    if 0 in strides:
        return  # nothing is written into a view that repeats itself
    value = -1 - np.arange(float(expected.size)).reshape(shape)
    new = engine.written(storage, offset, shape, strides, value)
    assert (storage == np.arange(24.0)).all()
    np.lib.stride_tricks.as_strided(storage[offset:], shape, bytes_apart)[...] = value
    assert (new == storage).all()
