"""Requests that wait: how many may, how long, and prompts that no context holds."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_files import stored
from patience import PATIENCE
from small_llama import EOS, write_small_llama

from backbay import BackbayError
from backbay_engine import (
    LLM,
    ContextOverflowError,
    DeadlineError,
    Handle,
    QueueFullError,
    RequestError,
    load,
)
from backbay_engine.runner import loop
from backbay_engine.worker import worker_link

ENDLESS: dict[str, Any] = {"temperature": 0, "logit_bias": {EOS: float("-inf")}, "num_keep": 0}
SIZES: dict[str, Any] = {"context": 64, "batch": 16, "num_threads": 1}
PARALLEL, QUEUE = 3, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(scope="module", params=[False, True], ids=["here", "worker"])
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(path, "cpu_ref", **SIZES, parallel=PARALLEL, queue=QUEUE, worker=request.param) as opened:
        yield opened


def endless(llm: LLM, **options: Any) -> Handle[Any]:
    return llm.submit("x", max_tokens=1_000_000, **ENDLESS, **options)


@pytest.mark.fault("more requests wait than may", "QueueFullError at submit; those that wait are answered")
def test_one_more_than_may_wait_is_refused(llm: LLM) -> None:
    handles = [endless(llm) for _ in range(PARALLEL + QUEUE)]
    for _ in range(3):
        with pytest.raises(QueueFullError, match=f"{PARALLEL} requests run, {QUEUE} wait") as caught:
            endless(llm)
        assert caught.value.waiting == QUEUE
        with pytest.raises(QueueFullError):
            llm.logits([1])
    handles[-1].cancel()  # one that waits
    handles.append(endless(llm))
    handles[0].cancel()  # one that runs
    handles.append(endless(llm))
    with pytest.raises(QueueFullError):
        endless(llm)
    for handle in handles:
        handle.cancel()
    assert all(handle.result(300).finish_reason == "cancelled" for handle in handles)
    assert llm.generate("after", max_tokens=2).tokens


def test_a_request_that_is_refused_takes_no_place(llm: LLM) -> None:
    for _ in range(3 * (PARALLEL + QUEUE)):
        with pytest.raises(BackbayError):
            llm.submit("x", logit_bias={9999: 1.0})
    handles = [llm.submit("x", max_tokens=1) for _ in range(PARALLEL + QUEUE)]
    assert all(handle.result(300).tokens for handle in handles)
    more = [
        llm.submit("x", max_tokens=1) for _ in range(PARALLEL + QUEUE)
    ]  # the others' places are free at once
    assert all(handle.result(300).tokens for handle in more)


def test_without_a_queue_what_can_run_runs(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES, parallel=2, queue=0) as llm:
        handles = [endless(llm), endless(llm)]
        with pytest.raises(QueueFullError):
            endless(llm)
        for handle in handles:
            handle.cancel()


@pytest.mark.parametrize("wrong", [-1, 1.5, "3"])
@pytest.mark.parametrize("worker", [False, True])
def test_the_length_of_a_queue_is_a_number(path: Path, wrong: Any, worker: bool) -> None:
    with pytest.raises(RequestError, match="queue must be an integer of at least 0"):
        load(path, "cpu_ref", **SIZES, queue=wrong, worker=worker)


def test_the_bound_holds_for_many_threads(llm: LLM) -> None:
    alone = llm.generate("x", max_tokens=4, **ENDLESS).tokens
    counted, lock = Counter[str](), threading.Lock()
    wrong: list[list[int]] = []

    def ask(n: int) -> None:
        for _ in range(12):
            try:
                handle = llm.submit("x", max_tokens=4, **ENDLESS)
            except QueueFullError:
                with lock:
                    counted["refused"] += 1
                time.sleep(0.002)
                continue
            if n % 5 == 0:
                handle.cancel()
            found = handle.result(300)
            with lock:
                counted[found.finish_reason] += 1
            if found.finish_reason != "cancelled" and found.tokens != alone:
                wrong.append(found.tokens)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted["length"]
    assert counted["refused"]
    assert wrong == []
    free = [llm.submit("x", max_tokens=1, **ENDLESS) for _ in range(PARALLEL + QUEUE)]  # no place was lost
    assert all(handle.result(300).tokens == alone[:1] for handle in free)


@pytest.mark.fault("no sequence is free before a request's deadline", "DeadlineError in that request alone")
def test_a_request_that_waits_too_long_ends(llm: LLM) -> None:
    running = [endless(llm) for _ in range(PARALLEL)]
    told: list[Any] = []
    late = llm.submit("late", max_tokens=1, deadline=0.05, on_step=told.append)
    patient = llm.submit("patient", max_tokens=1, deadline=600, **ENDLESS)
    with pytest.raises(DeadlineError, match="had not begun by its deadline"):
        late.result(300)
    assert [type(each) for each in told] == [DeadlineError]
    assert not patient.done
    running[0].cancel()
    assert patient.result(300).tokens
    for handle in running:
        handle.cancel()


def test_a_request_that_has_begun_outlives_its_deadline(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = endless(llm, deadline=PATIENCE)
    steps = begun.steps()
    next(steps)
    for module in (loop, worker_link):
        monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + 2 * PATIENCE)
    late = endless(llm, deadline=PATIENCE)  # so that deadlines are looked at
    late.cancel()
    for _ in range(20):
        next(steps)
    assert not begun.done
    begun.cancel()
    assert begun.result(300).tokens


def test_a_deadline_may_be_far(llm: LLM) -> None:
    for far in (float("inf"), 10**400, 1e300):
        assert llm.generate("x", max_tokens=1, deadline=far).tokens


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), "1", [1]])
def test_a_deadline_is_a_number_of_seconds(llm: LLM, wrong: Any) -> None:
    with pytest.raises(RequestError, match="deadline must be a number of seconds above 0 or None"):
        llm.submit("x", deadline=wrong)


def test_a_prompt_too_long_tells_both_counts(llm: LLM) -> None:
    for ask in (llm.submit, llm.generate, llm.logits, llm.encode):
        with pytest.raises(ContextOverflowError) as caught:
            ask([1] * 70)
        error = caught.value
        for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (each.prompt_tokens, each.context, str(each)) == (70, 64, str(error))


@pytest.mark.parametrize("worker", [False, True])
def test_a_text_too_long_for_an_encoder_tells_both_counts(worker: bool) -> None:
    with load(stored("bert-mean"), "cpu_ref", batch=16, worker=worker) as llm:
        with pytest.raises(ContextOverflowError) as caught:
            llm.embed([[1] * 20])
        assert (caught.value.prompt_tokens, caught.value.context) == (20, 16)
