"""Requests of recurrent and hybrid models: reuse, parallel sequences, cancellation, failed steps and full contexts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from model_files import unpacked
from runner_scripts import ALONE, OPTIONS, fail_once, prompt

import backbay
from backbay_engine import LLM, CacheShiftError, load
from backbay_engine.runner.traced_steps import StepCache
from backbay_engine.steps.step import Step


@pytest.fixture(scope="module", params=["mamba2", "qwen35"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module", params=sorted(backbay.backends()))
def llm(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = unpacked(name, tmp_path_factory.mktemp("models"))
    with load(path, request.param, context=96, parallel=3, batch=48, num_threads=1, kv_dtype="f32") as opened:
        yield opened


def test_many_at_once_get_what_each_gets_alone(llm: LLM) -> None:
    prompts = [prompt(n, seed) for seed, n in enumerate((1, 17, 60, 2, 29, 29))]
    alone = [llm.generate(ids, max_tokens=7, **ALONE).tokens for ids in prompts]
    handles = [llm.submit(ids, max_tokens=7, **OPTIONS) for ids in prompts]
    assert [handle.result().tokens for handle in handles] == alone


def test_the_same_prompt_is_taken_up_before_its_last_token(llm: LLM) -> None:
    ids = prompt(30, 10)
    first = llm.generate(ids, max_tokens=6, **OPTIONS)
    again = llm.generate(ids, max_tokens=6, **OPTIONS)
    assert again.timings.reused_tokens == 29
    assert again.tokens == first.tokens == llm.generate(ids, max_tokens=6, **ALONE).tokens


def test_a_conversation_goes_on_where_it_ended(llm: LLM) -> None:
    ids = prompt(20, 11)
    answer = llm.generate(ids, max_tokens=5, **OPTIONS)
    longer = [*ids, *answer.tokens, *prompt(9, 12)]
    found = llm.generate(longer, max_tokens=6, **OPTIONS)
    assert found.timings.reused_tokens == 24  # the answer's last token was never computed
    assert found.tokens == llm.generate(longer, max_tokens=6, **ALONE).tokens


def test_two_requests_may_share_a_beginning_while_one_is_answered(llm: LLM) -> None:
    ids = prompt(40, 13)
    alone = llm.generate(ids, max_tokens=12, **ALONE).tokens
    llm.forget()
    first = llm.submit(ids, max_tokens=12, **OPTIONS)
    next(iter(first))
    second = llm.generate(ids, max_tokens=12, **OPTIONS)
    assert second.timings.reused_tokens == 39
    assert [first.result().tokens, second.tokens] == [alone, alone]


def test_a_cancelled_request_leaves_a_state_that_can_be_used(llm: LLM) -> None:
    ids = prompt(50, 14)
    alone = llm.generate(ids, max_tokens=8, **ALONE).tokens
    handle = llm.submit(ids, max_tokens=40, **OPTIONS)
    next(iter(handle))
    handle.cancel()
    handle.result(300)
    assert llm.generate(ids, max_tokens=8, **OPTIONS).tokens == alone


@pytest.mark.fault(
    "a step of a recurrent model fails", "nothing: the step is tried again from the state before it"
)
@pytest.mark.parametrize("failing", [2, 4])
def test_a_step_that_fails_is_tried_again(llm: LLM, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [prompt(n, 15) for n in (33, 33, 18)]
    alone = [llm.generate(ids, max_tokens=8, **ALONE).tokens for ids in prompts]
    shared = fail_once(monkeypatch, failing)
    handles = [llm.submit(ids, max_tokens=8, **OPTIONS) for ids in prompts]
    assert [handle.result(300).tokens for handle in handles] == alone
    assert shared() >= failing


def test_a_full_context_is_computed_anew_from_what_is_kept(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """By steps like a prompt's: with one output."""
    ids, outputs, run = prompt(80, 16), set[int](), StepCache.run

    def noted(self: StepCache, step: Step, cancel: Any = None) -> Any:
        outputs.add(len(step.outputs))
        return run(self, step, cancel)

    monkeypatch.setattr(StepCache, "run", noted)
    answer = llm.generate(ids, max_tokens=30, num_keep=4, **OPTIONS)
    assert outputs == {1}
    before = llm.context + 1 - len(ids)  # tokens of the answer until the context is full
    held = [*ids, *answer.tokens[:before]]
    gone = (llm.context - 4) // 2
    kept = [*held[:4], *held[4 + gone :]]
    assert answer.tokens[before:][:3] == llm.generate(kept, max_tokens=3, **ALONE).tokens


@pytest.mark.fault(
    "positions are removed in the middle of a recurrent sequence",
    "CacheShiftError: later states depend on them",
)
def test_the_cache_refuses_to_forget_the_middle_of_a_sequence(llm: LLM) -> None:
    llm.generate(prompt(20, 17), max_tokens=2, **OPTIONS)
    assert llm.cache is not None
    sequence = next(slot.sequence for slot in llm.runner.slots.all if len(slot.tokens) == 21)
    with pytest.raises(CacheShiftError, match=r"positions \[4, 9\) cannot be removed: later states depend"):
        llm.cache.remove(sequence, 4, 9)


def test_forgetting_frees_all_states(llm: LLM) -> None:
    llm.generate(prompt(20, 18), max_tokens=2, **OPTIONS)
    llm.forget()
    assert llm.cache is not None
    assert llm.cache.used == 0


def test_what_was_reserved_is_enough_for_every_step(llm: LLM) -> None:
    handles = [llm.submit(prompt(48, seed), max_tokens=3, **OPTIONS) for seed in range(20, 26)]
    for handle in handles:
        handle.result()
    assert llm.memory().total() <= llm.step_cache._kept.reserved
