"""Handles: answers step by step, and what is told to the functions of callers."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_llama import EOS

from backbay import ClosedError
from backbay_engine import LLM, Completion, Handle, LogitsError, RequestError, TokenStep, load

ENDLESS = {"logit_bias": {EOS: float("-inf")}}
GREEDY = {"temperature": 0, **ENDLESS}
SIZES: dict[str, Any] = {"context": 64, "parallel": 3, "batch": 16, "num_threads": 1}


class Told:
    """What `on_step` was called with, and whether it was called after the end."""

    def __init__(self) -> None:
        self.steps: list[TokenStep] = []
        self.end: Completion | BaseException | None = None
        self.late = 0
        self.ended = threading.Event()

    def __call__(self, what: Any) -> None:
        self.late += self.ended.is_set()
        if isinstance(what, TokenStep):
            self.steps.append(what)
        else:
            self.end = what
            self.ended.set()


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 12, **GREEDY},
        {"max_tokens": 12, "temperature": 1.0, "seed": 4, "logprobs": 2},
        {"max_tokens": 12, "stop": ["ab", "b"], "logit_bias": {97: 5.0, 98: 4.0}, "seed": 1},
        {"max_tokens": 12, "temperature": 0, "logit_bias": {0xE2: 100.0}},  # never a whole character
        {"max_tokens": 5, "logit_bias": {EOS: 1000.0}},
        {"temperature": 0, **ENDLESS},  # until the context is full
        {"temperature": 0, "num_keep": 2, "max_tokens": 100, **ENDLESS},
    ],
)
def test_steps_joined_are_the_answer(llm: LLM, options: dict[str, Any]) -> None:
    handle = llm.submit("steps", **options)
    steps, answer = list(handle.steps()), handle.result()
    assert "".join(step.text for step in steps) == "".join(llm.submit("steps", **options)) == answer.text
    assert [token for step in steps for token in step.tokens] == answer.tokens
    assert [step.finish_reason for step in steps] == [None] * (len(steps) - 1) + [answer.finish_reason]
    if answer.logprobs is None:
        assert all(step.logprobs is None for step in steps)
    else:
        assert [each for step in steps for each in step.logprobs or ()] == answer.logprobs
    assert list(handle.steps()) == []


def test_each_step_is_told_and_then_the_end(llm: LLM) -> None:
    told = Told()
    handle = llm.submit("told", max_tokens=9, on_step=told, logprobs=1, **GREEDY)
    steps = list(handle.steps())
    assert told.ended.wait(300)
    assert told.steps == steps
    assert told.end is handle.result()
    assert told.late == 0


def test_an_error_is_told_as_the_end(llm: LLM) -> None:
    told = Told()
    handle = llm.submit("x", on_step=told, logit_bias=dict.fromkeys(range(261), float("-inf")))
    with pytest.raises(LogitsError):
        handle.result()
    assert isinstance(told.end, LogitsError)
    assert told.steps == []
    with pytest.raises(LogitsError):
        list(handle.steps())


def test_a_cancelled_answer_tells_its_end_once(llm: LLM) -> None:
    for _ in range(8):
        told = Told()
        handle = llm.submit("cancel", max_tokens=10_000, num_keep=0, on_step=told, **GREEDY)
        next(iter(handle.steps()))
        handle.cancel()
        answer = handle.result(300)
        handle.cancel()
        assert told.end is answer
        assert answer.finish_reason == "cancelled"
        assert told.steps[-1].finish_reason == "cancelled"
        assert [token for step in told.steps for token in step.tokens] == answer.tokens
        assert told.late == 0


@pytest.mark.fault(
    "a function given as on_step fails", "its error in its request; the others get their answers"
)
def test_an_error_of_the_function_ends_its_request_alone(llm: LLM) -> None:
    alone = llm.generate("fine", max_tokens=12, **GREEDY).tokens
    calls = []

    def fails(what: Any) -> None:
        calls.append(what)
        raise KeyError("on_step")

    good = llm.submit("fine", max_tokens=12, **GREEDY)
    bad = llm.submit("bad", max_tokens=10_000, num_keep=0, on_step=fails, **GREEDY)
    with pytest.raises(KeyError, match="on_step"):
        bad.result(300)
    assert len(calls) == 1
    assert good.result(300).tokens == alone
    llm.forget()  # waits until nothing runs


def test_an_error_of_the_function_at_the_end_is_logged(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    def fails(what: Any) -> None:
        if isinstance(what, Completion):
            raise KeyError("end")

    with caplog.at_level(logging.ERROR):
        assert llm.submit("end", max_tokens=2, on_step=fails, **GREEDY).result(300).tokens
    assert "on_step failed" in caplog.text


def test_a_closed_model_tells_the_error_once(path: Path) -> None:
    for worker in (False, True):
        told = [Told() for _ in range(6)]
        with load(path, "cpu_ref", **SIZES, worker=worker) as llm:
            handles = [llm.submit("x", max_tokens=10_000, num_keep=0, on_step=one, **GREEDY) for one in told]
            next(iter(handles[0].steps()))
        for one, handle in zip(told, handles, strict=True):
            assert isinstance(one.end, ClosedError)
            assert one.late == 0
            with pytest.raises(ClosedError):
                handle.result(300)


def test_the_first_end_counts() -> None:
    told = Told()
    handle: Handle[int] = Handle(lambda: None, told)
    handle.fail(ClosedError("closed"))
    handle.succeed(5)
    handle.emit(TokenStep("late", (1,)))
    with pytest.raises(ClosedError):
        handle.result()
    assert told.late == 0
    assert told.steps == []


def emit(handle: Handle[int], count: int) -> None:
    for _ in range(count):
        handle.emit(TokenStep("a", (1,)))


def test_steps_and_ends_of_several_threads_come_in_order() -> None:
    for _ in range(50):
        told = Told()
        handle: Handle[int] = Handle(lambda: None, told)
        threads = [
            threading.Thread(target=partial(emit, handle, 100)),
            threading.Thread(target=partial(handle.fail, ClosedError("closed"))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert told.late == 0
        assert isinstance(told.end, ClosedError)


def test_what_cannot_be_called_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="on_step must be a function of one argument, got 5"):
        llm.submit("x", on_step=5)
