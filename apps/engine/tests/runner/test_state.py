"""What runs and waits now, and what was done so far."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_files import stored
from patience import PATIENCE, wait_until
from small_llama import EOS, write_small_llama

from backbay import ClosedError
from backbay_engine import LLM, QueueFullError, SlotState, State, Totals, load
from backbay_engine.worker import worker_link

ENDLESS: dict[str, Any] = {
    "temperature": 0,
    "logit_bias": {EOS: float("-inf")},
    "num_keep": 0,
    "max_tokens": 10**6,
}
SIZES: dict[str, Any] = {"context": 64, "parallel": 2, "batch": 16, "num_threads": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may take long to tell its state."""
    monkeypatch.setattr(worker_link, "LOOKING", PATIENCE)


@pytest.fixture(params=[False, True], ids=["here", "worker"])
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(path, "cpu_ref", **SIZES, queue=3, worker=request.param) as opened:
        yield opened


def test_a_new_model_has_done_nothing(llm: LLM) -> None:
    assert llm.state() == State((SlotState(), SlotState()), 0, Totals())
    assert (llm.state().free, llm.state().busy) == (2, 0)


def test_what_runs_and_waits_is_told(llm: LLM) -> None:
    handles = [llm.submit("x", **ENDLESS) for _ in range(5)]
    wait_until(lambda: llm.state().waiting == 3 and all(slot.tokens for slot in llm.state().slots))
    state = llm.state()
    assert (state.busy, state.free) == (2, 0)
    assert all(slot.busy and slot.tokens <= 64 for slot in state.slots)
    for handle in handles:
        handle.cancel()
        handle.result(300)
    wait_until(lambda: llm.state().free == 2)
    assert llm.state().waiting == 0
    assert any(slot.tokens for slot in llm.state().slots)  # kept for prompts to come
    llm.forget()
    assert all(slot.tokens == 0 for slot in llm.state().slots)


def test_tokens_are_counted(llm: LLM) -> None:
    totals = Totals()
    for asked, count in (([5, 6, 7, 8], 3), ([5, 6, 7, 9, 10], 2), ([30, 31], 4)):
        timings = llm.generate(asked, **{**ENDLESS, "max_tokens": count}).timings
        totals += Totals(timings.prompt_tokens, timings.reused_tokens, timings.tokens)
        assert llm.state().totals == totals
    assert totals.reused == 3
    llm.logits([1, 2, 3])
    assert llm.state().totals == totals + Totals(prompt=3)


def test_the_queue_never_holds_more_than_it_may(llm: LLM) -> None:
    over, seen = threading.Event(), list[State]()

    def look() -> None:
        while not over.is_set():
            seen.append(llm.state())
            time.sleep(0.002)  # leaves the processor to those that ask

    def ask() -> None:
        for _ in range(20):
            try:
                llm.generate("x", **{**ENDLESS, "max_tokens": 3})
            except QueueFullError:
                time.sleep(0.001)

    watcher = threading.Thread(target=look)
    watcher.start()
    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    watcher.join()
    assert max(state.waiting for state in seen) <= 5
    counted = [state.totals.generated for state in seen]
    assert counted == sorted(counted)


def test_a_closed_model_has_no_state(llm: LLM) -> None:
    llm.close()
    with pytest.raises(ClosedError):
        llm.state()


def test_a_model_without_sequences_has_none() -> None:
    for worker in (False, True):
        with load(stored("bert-mean"), "cpu_ref", worker=worker) as llm:
            assert llm.state() == State()


def test_totals_outlive_a_worker(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        llm.generate([5, 6], **{**ENDLESS, "max_tokens": 3})
        assert llm.state().totals == Totals(2, 0, 3)
        assert llm.worker_pid is not None
        os.kill(llm.worker_pid, signal.SIGKILL)
        wait_until(lambda: llm.worker_pid is None)
        assert llm.state() == State((SlotState(), SlotState()), 0, Totals(2, 0, 3))
        assert llm.worker_pid is None  # a question starts no worker
        llm.generate([5, 6], **{**ENDLESS, "max_tokens": 3})
        assert llm.state().totals == Totals(4, 0, 6)
