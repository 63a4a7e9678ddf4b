"""One session per structure: which graphs share one, which do not, and what stays after contexts are closed."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from decoder_step import SHAPES, Step
from onnx import shape_inference

import backbay
from backbay import BackendParams, CancelledError, DType
from backbay_native import NativeCode


@pytest.fixture
def backend() -> Iterator[Any]:
    with backbay.open(None, backend="onnx") as opened:
        yield opened


def test_step_shapes_of_one_model_share_one_session_and_are_right(backend: Any) -> None:
    with backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = Step(backend), Step(reference)
        for shape in SHAPES:
            np.testing.assert_allclose(
                ours.run(backend, *shape), theirs.run(reference, *shape), rtol=2e-5, atol=2e-5
            )
    assert backend.sessions.created == 1


def test_no_value_takes_the_memory_of_another(backend: Any) -> None:
    """No size is known while a session is made, so ONNX Runtime would compare all values with all dead ones in vain."""
    Step(backend).run(backend, *SHAPES[0])
    [[compiled]] = backend.sessions._compiled.values()
    assert not compiled.session.get_session_options().enable_mem_reuse
    values = shape_inference.infer_shapes(compiled.lowered.model).graph.value_info
    extents = [value.type.tensor_type.shape.dim for value in values]
    known = [dims for dims in extents if dims and all(dim.HasField("dim_value") for dim in dims)]
    assert len(extents) > 10
    assert not known


@pytest.mark.parametrize("op", ["silu", "tanh"])
def test_threads_spin_for_a_short_time_where_native_code_divides_its_work(
    backend: Any, native: NativeCode, op: str
) -> None:
    with backend.new_context() as ctx:
        ctx.compute(getattr(ctx.from_floats([1.0, 2.0]), op)(ctx))
    [[compiled]] = backend.sessions._compiled.values()
    entry = compiled.session.get_session_options().get_session_config_entry
    assert entry("session.intra_op.allow_spinning") == ("1" if op == "silu" else "0")
    if op == "silu":
        assert int(entry("session.intra_op.spin_duration_us")) <= 100
        assert entry("session.force_spinning_stop") == "1"


def test_a_graph_that_a_guard_refuses_gets_a_session_of_its_own(backend: Any) -> None:
    def add(columns: int) -> Any:
        with backend.new_context() as ctx:
            x, y = (
                ctx.from_floats(np.ones((4, 6), np.float32)),
                ctx.from_floats(np.ones((columns, 6), np.float32)),
            )
            z = x.add(ctx, y)
            ctx.compute(z)
            return z.numpy()

    for columns in (1, 4, 2):  # one, as many, and to be tiled
        np.testing.assert_array_equal(add(columns), np.full((4, 6), 2.0))
    assert backend.sessions.created == 2


def test_many_contexts_leave_one_session_and_no_memory(backend: Any) -> None:
    step = Step(backend)
    before = backend.memory().total()
    for _ in range(50):
        step.run(backend, *SHAPES[1])
    assert backend.sessions.created == 1
    assert backend.memory().total() == before


def test_sessions_of_a_closed_backend_are_freed_without_the_garbage_collector(backend: Any) -> None:
    Step(backend).run(backend, *SHAPES[1])
    (known,) = backend.sessions._compiled.values()
    session = weakref.ref(known[0].session)
    del known
    gc.disable()
    try:
        backend.close()
        assert session() is None
    finally:
        gc.enable()


def test_a_kept_context_runs_again_without_compiling(backend: Any) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([1.0, 2.0])
        y = x.sqr(ctx)
        for value in (3.0, 5.0):
            ctx.compute(y)
            x.from_floats([value, value])
            ctx.compute(y)
            assert list(y.floats()) == [value**2] * 2
        assert ctx.counters.compilations == 1


def test_a_quantized_leaf_is_read_anew_when_it_was_written(backend: Any) -> None:
    import gguf

    def blocks(value: float) -> Any:
        numbers = np.full((2, 32), value, np.float32)
        return gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)

    with backend.new_context() as ctx:
        w = ctx.from_bytes(DType.Q8_0, blocks(1.0).tobytes(), 32, 2)
        y = w.mulmat(ctx, ctx.from_floats(np.ones((1, 32), np.float32)))
        for value in (1.0, 3.0):
            w.from_bytes(blocks(value).tobytes())
            ctx.compute(y)
            np.testing.assert_allclose(y.floats(), [32 * value] * 2, rtol=1e-3)


def test_a_run_can_be_cancelled(backend: Any) -> None:
    """Before its end, as the processor's time tells."""

    class AfterLooks(threading.Event):
        looks = 5

        def is_set(self) -> bool:
            self.looks -= 1
            return self.looks < 0

    with backend.new_context() as ctx:
        w = ctx.from_floats(np.full((350, 350), 1e-3, np.float32))
        x = w
        for _ in range(200):
            x = w.mulmat(ctx, x)
        ctx.compute(x)
        begun = time.process_time()
        ctx.compute(x)
        whole = time.process_time() - begun
        begun = time.process_time()
        with pytest.raises(CancelledError):
            ctx.compute(x, cancel=AfterLooks())
        assert time.process_time() - begun < whole / 2
    with backend.new_context() as ctx:  # and the backend still works
        y = ctx.from_floats([2.0]).sqr(ctx)
        ctx.compute(y, cancel=threading.Event())
        assert list(y.floats()) == [4.0]


def test_two_threads_compute_in_contexts_of_their_own(backend: Any) -> None:
    wrong: list[Any] = []

    def work(value: float) -> None:
        for _ in range(20):
            with backend.new_context() as ctx:
                y = ctx.from_floats([value]).sqr(ctx)
                ctx.compute(y)
                if list(y.floats()) != [value**2]:
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_measuring_allocates_nothing_and_reports_the_same() -> None:
    def measured(alloc: bool) -> int:
        params = BackendParams(alloc_memory=alloc)
        with backbay.open(None, backend="onnx", params=params) as backend, backend.new_context() as ctx:
            y = ctx.empty(DType.F32, 64, 8).sqr(ctx)
            ctx.forward(y).reserve()
            return int(backend.memory().total())

    assert measured(False) == measured(True) > 0


def test_guard_zones_around_buffers_stay_whole() -> None:
    params = BackendParams(debug=backbay.Debug(poison=True, guard_bytes=64))
    with backbay.open(None, backend="onnx", params=params) as backend:
        step = Step(backend)
        assert np.isfinite(step.run(backend, *SHAPES[0])).all()
