"""Answers under a constraint, which says at each place which tokens may come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from constraints import Among, Failing, Spelled, mask_of
from small_llama import EOS, SUPPRESSED, WORDS

from backbay import OptionError
from backbay_engine import LLM, LogitsError, RequestError, load
from backbay_engine.runner.traced_steps import StepCache
from backbay_engine.text.sampling.constraint import mask_logits

SIZES: dict[str, Any] = {"context": 64, "parallel": 3, "batch": 16, "num_threads": 1, "kv_dtype": "f32"}
DIGITS = range(48, 58)
ENDLESS = {"logit_bias": {EOS: float("-inf")}}


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"temperature": 2.0, "seed": 5, "top_k": 0}, {"seed": 1, "logprobs": 2}]
)
def test_only_allowed_tokens_come(llm: LLM, options: dict[str, Any]) -> None:
    others = dict.fromkeys(set(range(WORDS)) - set(DIGITS), float("-inf"))
    options = {"max_tokens": 12, "reuse": False, **options}
    expected = llm.generate("count", **options, logit_bias=others)
    found = llm.generate("count", **options, constraint=Among(DIGITS, WORDS))
    assert found.text == expected.text
    assert found.text.isdigit()
    for one, other in zip(found.logprobs or (), expected.logprobs or (), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)  # before bias and constraint


def test_a_text_can_be_forced_and_places_left_open(llm: LLM) -> None:
    free = llm.generate("x", max_tokens=3, temperature=0, **ENDLESS).tokens
    open_places = llm.generate("x", max_tokens=3, temperature=0, constraint=Spelled([], WORDS), **ENDLESS)
    assert open_places.tokens == free
    forced: list[int | None] = [*b"yes", None, *b"no", EOS]
    answer = llm.generate("x", max_tokens=20, seed=1, constraint=Spelled(forced, WORDS))
    assert answer.tokens[:3] + answer.tokens[4:] == [*b"yes", *b"no", EOS]
    assert answer.finish_reason == "stop"


def test_an_answer_under_a_constraint_goes_on_after_any_of_its_tokens(llm: LLM) -> None:
    forced: list[int | None] = [*b"ab", None, None, *b"cd", None, EOS]
    options = {"max_tokens": 20, "seed": 3, "temperature": 1.0}
    whole = llm.generate("x", **options, constraint=Spelled(forced, WORDS))
    for cut in range(len(whole.tokens)):
        resumed = whole.tokens[:cut]
        found = llm.generate("x", **options, resume=resumed, constraint=Spelled(forced, WORDS))
        assert (found.tokens, found.text) == (whole.tokens, whole.text)


def test_a_constraint_is_told_every_token(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as llm:
        constraint = Among([*DIGITS, EOS], WORDS)
        answer = llm.generate("x", max_tokens=30, seed=2, constraint=constraint, resume=[48, 49])
        assert constraint.accepted == answer.tokens


def test_others_get_the_answers_that_they_get_alone(llm: LLM) -> None:
    alone = llm.generate("beside", max_tokens=12, temperature=0).tokens
    digits = llm.generate("9", max_tokens=12, temperature=0, constraint=Among(DIGITS, WORDS)).tokens
    handles = [
        llm.submit("beside", max_tokens=12, temperature=0),
        llm.submit("9", max_tokens=12, temperature=0, constraint=Among(DIGITS, WORDS)),
        llm.submit("9", max_tokens=12, temperature=0, constraint=Among(DIGITS, WORDS)),
    ]
    assert [handle.result(300).tokens for handle in handles] == [alone, digits, digits]


@pytest.mark.fault("a constraint fails", "its error in its request; the others get their answers")
@pytest.mark.parametrize("method", ["mask", "accept"])
@pytest.mark.parametrize("after", [0, 3])
def test_an_error_of_a_constraint_is_its_requests(llm: LLM, method: str, after: int) -> None:
    alone = llm.generate("fine", max_tokens=12, temperature=0, **ENDLESS).tokens
    good = llm.submit("fine", max_tokens=12, temperature=0, **ENDLESS)
    bad = llm.submit("bad", max_tokens=12, constraint=Failing(method, after), **ENDLESS)
    with pytest.raises(ArithmeticError, match=f"{method} failed"):
        bad.result(300)
    assert good.result(300).tokens == alone


@pytest.mark.fault("a constraint allows no token", "LogitsError in its request")
def test_a_constraint_must_allow_a_token(llm: LLM) -> None:
    for never in (Among([], WORDS), Among([SUPPRESSED], WORDS)):
        with pytest.raises(LogitsError, match="all 261 logits are -inf after bias, penalties and constraint"):
            llm.generate("x", constraint=never)


def test_a_mask_is_computed_while_the_backend_computes_its_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, threads = threading.Event(), set[str]()
    run = StepCache.run

    class Watched(Among):
        def mask(self) -> bytes | None:
            threads.add(threading.current_thread().name)
            asked.set()
            return super().mask()

    def waits(self: StepCache, step: Any, cancel: Any = None) -> Any:
        assert asked.wait(300)  # the mask of this step is asked for before the step is over
        asked.clear()
        return run(self, step, cancel)

    with load(path, "cpu_ref", **SIZES) as llm:
        monkeypatch.setattr(StepCache, "run", waits)
        answer = llm.generate("one step", max_tokens=6, constraint=Watched(DIGITS, WORDS))
    assert answer.text.isdigit()
    assert threads == {"backbay masks"}


@pytest.mark.parametrize("size", [1, 7, 8, 31, 261])
def test_bits_are_counted_from_the_lowest_of_the_first_byte(size: int) -> None:
    for ids in ([0], [size - 1], list(range(0, size, 3))):
        for bits, logits in ((size, size), (size + 100, size), (size, size + 100)):
            row = np.arange(logits, dtype=np.float32)
            mask_logits(row, mask_of(ids, bits))
            assert np.flatnonzero(row > -np.inf).tolist() == ids
            assert row[ids].tolist() == ids  # unchanged
    row = np.zeros(size, np.float32)
    mask_logits(row, b"")
    assert (row == -np.inf).all()


def test_what_is_no_constraint_is_refused(llm: LLM) -> None:
    for wrong in (5, "regex", object()):
        with pytest.raises(RequestError, match="constraint must have the methods mask and accept"):
            llm.submit("x", constraint=wrong)


def test_a_worker_gets_what_can_be_sent(path: Path) -> None:
    class Local(Among):
        pass

    with load(path, "cpu_ref", **SIZES, worker=True, queue=0) as llm:
        for _ in range(5):  # no place is lost
            with pytest.raises(OptionError, match="must be picklable"):
                llm.submit("x", constraint=Local(DIGITS, WORDS))
        assert llm.generate("x", max_tokens=2).tokens
