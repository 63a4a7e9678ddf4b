"""Runs that a device records and plays again: what ONNX Runtime's CUDA graphs ask for, kept on the host's memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from decoder_step import CAPACITY, HEADS, Step
from random_graphs import play

import backbay
from backbay import BackbayError, BackendParams, DType
from backbay_onnx.backend import OnnxBackend
from backbay_onnx.memory.buffers import DeviceBuffer
from backbay_onnx.plans import recorded_runs, session_cache
from backbay_onnx.plans.io_binding import DirectIOBinding
from backbay_onnx.session import device
from backbay_onnx.session.device import Device
from backbay_onnx.session.providers import HOST_PROVIDER


class Recording(OnnxBackend):
    """The host's memory, treated as if it were that of a device that records runs."""

    name = "recording"
    device = Device(
        "CUDA:0", replace(HOST_PROVIDER, has_memory=True, recording="enable_cuda_graph"), records=True
    )


class RecordingSession:
    """Does with a session what ONNX Runtime does: while it records a run it runs twice, and a record is of one thread."""

    made: list[RecordingSession] = []
    fails: str = ""  # the error of recording, if it fails

    def __init__(self, inner: Any) -> None:
        self._inner, self._records = inner, dict[tuple[int, int], Any]()
        self.played, self.released = 0, list[int]()
        self.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        assert device._ALONE._is_owned()  # type: ignore[attr-defined]
        number = int(options.get_run_config_entry("gpu_graph_id"))
        record = number, threading.get_ident()
        self._inner.run_with_iobinding(binding, options)
        if number == -1:
            return
        if record in self._records:
            assert self._records[record] is binding
            self.played += 1
            return
        if self.fails:
            raise RuntimeError(self.fails)
        self._inner.run_with_iobinding(binding, options)
        self._records[record] = binding

    def release_captured_graph(self, number: int) -> None:
        assert device._ALONE._is_owned()  # type: ignore[attr-defined]
        del self._records[number, threading.get_ident()]
        self.released.append(number)


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[RecordingSession]:
    """Sessions that record, which read and fill memory of the device alone, and always the same."""
    create, place = session_cache.create_session, DirectIOBinding._place

    def created(model: Any, parts: Any, options: Any, given: Device, limit: int | None) -> Any:
        session = create(model, parts, options, given.unrecorded, limit)
        if not given.records:
            return session
        assert given.session_providers(limit)[0] == (HOST_PROVIDER.name, {"enable_cuda_graph": "1"})
        return RecordingSession(session)

    def placed(binding: DirectIOBinding, at: Any, *args: Any) -> Any:
        if isinstance(binding._session, RecordingSession):
            assert isinstance(at, DeviceBuffer)
            assert binding.bound not in binding._session._records.values()
        return place(binding, at, *args)

    monkeypatch.setattr(session_cache, "create_session", created)
    monkeypatch.setattr(DirectIOBinding, "_place", placed)
    monkeypatch.setattr(RecordingSession, "made", [])
    return RecordingSession.made


def test_random_graphs_compute_the_same(
    monkeypatch: pytest.MonkeyPatch, sessions: list[RecordingSession]
) -> None:
    monkeypatch.setattr(recorded_runs, "RUNS_BEFORE", 0)
    for seed in range(40):
        ours, expected = play(Recording, seed), play("cpu_ref", seed)
        for mine, theirs in zip(ours, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4, err_msg=f"seed {seed}")
    assert sum(session.played for session in sessions) >= 40


@pytest.fixture
def backend() -> Iterator[Any]:
    with backbay.open(None, backend=Recording) as opened:
        yield opened


def test_from_the_third_run_on_a_graph_is_played(backend: Any, sessions: list[RecordingSession]) -> None:
    with backend.new_context() as ctx:
        cache = ctx.zeros(DType.F32, 2, 6, row_axis=1)
        row, id = ctx.empty(DType.F32, 2, 1), ctx.empty(DType.I32, 1)
        ctx.forward(cache.set_rows(ctx, row, id))
        total = cache.sum_rows(ctx)
        for turn in range(6):
            row.from_floats([[turn, 1]])
            id.from_ints([turn])
            ctx.compute(total)
            assert total.numpy().ravel().tolist() == [*range(1, turn + 2), *[0] * (5 - turn)]
            assert [session.played for session in sessions] == [max(0, turn - 1)]


def test_rows_that_a_step_reads_and_writes_in_place_advance_once_a_step(
    backend: Any, sessions: list[RecordingSession]
) -> None:
    with backend.new_context() as ctx:
        state, x, ids = ctx.zeros(DType.F32, 3, 4), ctx.empty(DType.F32, 3, 1), ctx.from_ints([2])
        advanced = state.rows(ctx, ids).scale(ctx, 0.5).add(ctx, x)
        total = state.set_rows(ctx, advanced, ids).scale(ctx, 2)
        expected = np.zeros((4, 3), np.float32)
        for turn in range(6):
            x.from_floats([[turn, 1, -turn]])
            ctx.compute(total)
            expected[2] = expected[2] / 2 + [turn, 1, -turn]
            assert (state.numpy() == expected).all()
            assert (total.numpy() == 2 * expected).all()
    (compiled,) = next(iter(backend.sessions._compiled.values()))
    assert [state.in_place for state in compiled.lowered.states] == [True]
    assert [session.played for session in sessions] == [4]


def test_a_closed_plan_releases_its_recording(backend: Any, sessions: list[RecordingSession]) -> None:
    with backend.new_context() as ctx:
        total = ctx.from_floats([1.0, 2.0]).scale(ctx, 2)
        for _ in range(3):
            ctx.compute(total)
    backend.sessions.close()
    assert [session.released for session in sessions] == [[0]]


def test_a_session_records_only_so_many(
    backend: Any, sessions: list[RecordingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_cache, "MOST_RECORDED", 2)
    for size in range(4, 9):
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.arange(size, dtype=np.float32))
            doubled = x.scale(ctx, 2)
            for _ in range(4):
                ctx.compute(doubled)
                assert doubled.numpy().tolist() == [2 * each for each in range(size)]
    assert sum(session.played for session in sessions) == 2 * 2 * len(sessions)


def test_states_at_places_that_follow_from_a_state_are_put_back(
    backend: Any, sessions: list[RecordingSession]
) -> None:
    """A second run writes to the next place, so that its row must not stay."""
    with backend.new_context() as ctx:
        count, log, first = ctx.zeros(DType.F32, 1, 1), ctx.zeros(DType.F32, 1, 9), ctx.from_ints([0])
        more = count.rows(ctx, first).add(ctx, ctx.from_floats([[1.0]]))
        away = ctx.from_floats(np.arange(9, dtype=np.float32)).sub(
            ctx, count.set_rows(ctx, more, first).reshape(ctx, 1)
        )
        place = away.sqr(ctx).argsort(ctx).slice(ctx, 0, 0, 1)
        total = log.set_rows(ctx, ctx.from_floats([[5.0]]), place).sum_rows(ctx)
        for turn in range(1, 6):
            ctx.compute(total)
            assert log.numpy().ravel().tolist() == [0, *[5] * turn, *[0] * (8 - turn)]
    compiled = next(iter(backend.sessions._compiled.values()))[0]
    assert [state.in_place for state in compiled.lowered.states] == [True, True]


@pytest.mark.parametrize("reason", ["refused", "read by the host"])
def test_a_session_that_cannot_record_runs_as_ever(
    reason: str, backend: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = session_cache.create_session

    def created(model: Any, parts: Any, options: Any, given: Device, limit: int | None) -> Any:
        if given.records and reason == "refused":
            raise BackbayError("This session cannot use the graph capture feature as requested by the user")
        session = create(model, parts, options, given, limit)
        if given.records:
            there = [SimpleNamespace(name="CudaPinned") for _ in session.get_inputs()]
            session.get_input_memory_infos = lambda: there
        return session

    monkeypatch.setattr(session_cache, "create_session", created)
    with backend.new_context() as ctx, caplog.at_level(logging.INFO, "backbay.onnx"):
        x = ctx.input().empty(DType.F32, 2)
        doubled = x.scale(ctx, 2)
        for turn in range(4):
            x.from_floats([turn, 1])
            ctx.compute(doubled)
            assert doubled.numpy().tolist() == [2 * turn, 2]
    assert "are not recorded" in caplog.text


def test_other_errors_of_a_session_are_raised(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    create = session_cache.create_session

    def created(model: Any, parts: Any, options: Any, given: Device, limit: int | None) -> Any:
        if given.records:
            raise BackbayError("CUDA failure 700")
        return create(model, parts, options, given, limit)

    monkeypatch.setattr(session_cache, "create_session", created)
    with backend.new_context() as ctx, pytest.raises(BackbayError, match="700"):
        ctx.compute(ctx.from_floats([1.0]).scale(ctx, 2))


@pytest.mark.fault(
    "the device fails while it records a run", "a warning; runs go on without records, states as before"
)
def test_a_recording_that_fails_is_given_up(
    backend: Any,
    sessions: list[RecordingSession],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(RecordingSession, "fails", "CUDA failure 900: operation not permitted")
    with backend.new_context() as ctx:
        state, ids = ctx.zeros(DType.F32, 1, 4), ctx.from_ints([2])
        total = state.set_rows(ctx, state.rows(ctx, ids).add(ctx, ctx.from_floats([[1.0]])), ids).scale(
            ctx, 2
        )
        for turn in range(1, 6):
            ctx.compute(total)
            assert total.numpy()[2].tolist() == [2 * turn]
    assert caplog.text.count("could not be recorded") == 1
    assert [session.played for session in sessions] == [0]


def test_a_record_is_played_on_its_thread_alone(backend: Any, sessions: list[RecordingSession]) -> None:
    with backend.new_context() as ctx:
        state, ids = ctx.zeros(DType.F32, 1, 4), ctx.from_ints([2])
        total = state.set_rows(ctx, state.rows(ctx, ids).add(ctx, ctx.from_floats([[1.0]])), ids).scale(
            ctx, 2
        )
        for turn in range(1, 7):
            if turn % 2:
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(ctx.compute, total).result()
            else:
                ctx.compute(total)
            assert total.numpy()[2].tolist() == [2 * turn]


def test_a_graph_of_views_alone_needs_no_session(backend: Any, sessions: list[RecordingSession]) -> None:
    with backend.new_context() as ctx:
        x = ctx.from_floats([1.0, 2.0]).reshape(ctx, 1, 2)
        ctx.compute(x)
        assert x.numpy().tolist() == [[1], [2]]
    assert not sessions


def test_inputs_and_outputs_on_the_device_are_in_the_memory_report() -> None:
    for alloc_memory in (True, False):
        params = BackendParams(alloc_memory=alloc_memory)
        with backbay.open(None, backend=Recording, params=params) as backend:
            with backend.new_context() as ctx:
                x = ctx.input().empty(DType.F32, 1000)
                doubled = x.scale(ctx, 2)
                if alloc_memory:
                    ctx.compute(doubled)
                else:
                    ctx.forward(doubled).reserve()
                assert backend.memory().gpus[0].graph.size >= 8000
            backend.sessions.close()
            assert backend.memory().gpus[0].graph.size == 0


def test_a_device_that_records_nothing_ignores_the_option() -> None:
    options = {"provider": "cpu", "cuda_graphs": "on"}
    with backbay.open(None, backend="onnx", params=BackendParams(options=options)) as opened:
        assert not opened.device.records


@pytest.mark.parametrize("before", [0, 2])
def test_a_decoder_computes_the_same(before: int, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_runs, "RUNS_BEFORE", before)
    with backbay.open(None, backend="cpu_ref") as reference:
        ours, theirs = Step(backend), Step(reference)
        for shape in [(8, 0, 16), *[(1, at, 16) for at in range(8, 14)], (HEADS, 17, 32), (1, 21, CAPACITY)]:
            np.testing.assert_allclose(
                ours.run(backend, *shape), theirs.run(reference, *shape), rtol=2e-5, atol=2e-5
            )
