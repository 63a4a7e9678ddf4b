"""What would end a thread or the program, raised by code of others, ends only its request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from constraints import Failing
from small_llama import EOS

from backbay import BackbayError, ClosedError
from backbay_engine import LLM, load
from backbay_engine.runner.loop import Runner
from backbay_engine.runner.traced_steps import StepCache

SIZES: dict[str, Any] = {"context": 64, "parallel": 2, "batch": 16, "num_threads": 1, "kv_dtype": "f32"}
ENDLESS = {"logit_bias": {EOS: float("-inf")}, "temperature": 0}
EXITS = [SystemExit(3), KeyboardInterrupt(), GeneratorExit()]
PATIENCE = 60.0  # seconds


@pytest.fixture
def own_llm(path: Path) -> Any:
    with load(path, "cpu_ref", **SIZES) as opened:
        yield opened


@pytest.mark.fault(
    "a constraint raises SystemExit, KeyboardInterrupt or GeneratorExit",
    "BackbayError in its request; the others get their answers",
)
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("method", "resume"), [("mask", []), ("accept", []), ("accept", [48, 49])])
def test_a_constraint_ends_its_request_alone(
    llm: LLM, error: BaseException, method: str, resume: list[int]
) -> None:
    alone = llm.generate("fine", max_tokens=8, **ENDLESS).tokens
    good = llm.submit("fine", max_tokens=8, **ENDLESS)
    constraint = Failing(method, 1, error)
    bad = llm.submit("bad", max_tokens=8, constraint=constraint, resume=resume, **ENDLESS)
    with pytest.raises(BackbayError, match=type(error).__name__):
        bad.result(PATIENCE)
    assert good.result(PATIENCE).tokens == alone
    assert llm.generate("fine", max_tokens=8, **ENDLESS).tokens == alone


@pytest.mark.fault(
    "on_step raises SystemExit, KeyboardInterrupt or GeneratorExit",
    "BackbayError in its request; the others get their answers",
)
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
def test_on_step_ends_its_request_alone(llm: LLM, error: BaseException) -> None:
    def fails(_: object) -> None:
        raise error

    bad = llm.submit("bad", max_tokens=8, on_step=fails, **ENDLESS)
    with pytest.raises(BackbayError, match=type(error).__name__):
        bad.result(PATIENCE)
    assert len(llm.generate("fine", max_tokens=8, **ENDLESS).tokens) == 8


@pytest.mark.fault(
    "a kernel raises SystemExit, KeyboardInterrupt or GeneratorExit amid a step",
    "the step is computed again, each request alone; what raises again is its request's error",
)
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("times", [1, 10**6])
def test_a_kernel_ends_no_thread(
    own_llm: LLM, monkeypatch: pytest.MonkeyPatch, error: BaseException, times: int
) -> None:
    alone = [own_llm.generate(text, max_tokens=8, **ENDLESS).tokens for text in ("one", "two")]
    run, left = StepCache.run, [times]

    def fails(self: StepCache, step: Any, cancel: Any = None) -> Any:
        if step.size <= 2 and left[0]:  # no prompt
            left[0] -= 1
            raise error
        return run(self, step, cancel)

    monkeypatch.setattr(StepCache, "run", fails)
    handles = [own_llm.submit(text, max_tokens=8, **ENDLESS) for text in ("one", "two")]
    if times > 1:
        for handle in handles:
            with pytest.raises(BackbayError, match=type(error).__name__):
                handle.result(PATIENCE)
        left[0] = 0
        handles = [own_llm.submit(text, max_tokens=8, **ENDLESS) for text in ("one", "two")]
    answered = [handle for handle in handles if _answer(handle) is not None]
    assert len(answered) >= 1
    for handle, tokens in zip(handles, alone, strict=True):
        assert _answer(handle) in (None, tokens)
    assert own_llm.generate("one", max_tokens=8, **ENDLESS).tokens == alone[0]


def _answer(handle: Any) -> list[int] | None:
    """The tokens of an answer; None if a step of its own failed."""
    try:
        return list(handle.result(PATIENCE).tokens)
    except BackbayError:
        return None


@pytest.mark.fault(
    "the thread that computes steps ends, whatever the reason",
    "ClosedError in all requests, and in later ones",
)
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # it is raised on, to be seen
def test_nobody_waits_for_a_thread_that_has_ended(own_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(self: Runner) -> bool:
        raise SystemExit

    first = own_llm.submit("first", max_tokens=10_000, num_keep=0, **ENDLESS)
    next(iter(first.steps()))
    waiting = [own_llm.submit("waits", max_tokens=10_000, num_keep=0, **ENDLESS) for _ in range(3)]
    monkeypatch.setattr(Runner, "_wait", ends)
    for handle in (first, *waiting):
        with pytest.raises(ClosedError, match="its thread ended with SystemExit"):
            handle.result(PATIENCE)
    with pytest.raises(ClosedError, match="its thread ended with SystemExit"):
        own_llm.generate("late")
