"""Requests of models with an encoder and a decoder: the prompt goes to the encoder, in one step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from model_files import unpacked
from runner_scripts import ALONE, OPTIONS, fail_once, prompt

import backbay
from backbay_engine import LLM, CacheShiftError, RequestError, load


@pytest.fixture(scope="module", params=sorted(backbay.backends()))
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = unpacked("t5-flan", tmp_path_factory.mktemp("models"))
    with load(path, request.param, context=64, parallel=3, batch=48, num_threads=1, kv_dtype="f32") as opened:
        yield opened


def test_texts_at_once_get_the_answer_that_each_gets_alone(llm: LLM) -> None:
    prompts = [prompt(n, seed) for seed, n in enumerate((1, 17, 40, 2, 29, 29))]
    alone = [llm.generate(ids, max_tokens=7, **ALONE).tokens for ids in prompts]
    assert len({tuple(tokens) for tokens in alone}) > 3  # the answer depends on the text
    handles = [llm.submit(ids, max_tokens=7, **OPTIONS) for ids in prompts]
    assert [handle.result().tokens for handle in handles] == alone


def test_the_same_text_is_encoded_once(llm: LLM) -> None:
    ids = prompt(30, 10)
    first = llm.generate(ids, max_tokens=6, **OPTIONS)
    again = llm.generate(ids, max_tokens=6, **OPTIONS)
    assert again.timings.reused_tokens == 30  # all but the decoder's first token
    assert again.tokens == first.tokens


@pytest.mark.parametrize("cut", [slice(0, 20), slice(0, 29)])
def test_a_text_that_another_one_begins_with_is_encoded_anew(llm: LLM, cut: slice) -> None:
    ids = prompt(30, 11)
    expected = [llm.generate(text, max_tokens=6, **ALONE).tokens for text in (ids, ids[cut])]
    llm.forget()
    found = [llm.generate(text, max_tokens=6, **OPTIONS) for text in (ids, ids[cut], ids)]
    assert [each.tokens for each in found] == [*expected, expected[0]]
    assert found[1].timings.reused_tokens == 0


def test_the_logits_are_those_of_the_decoders_first_token(llm: LLM) -> None:
    ids = prompt(12, 12)
    scores = llm.logits(ids)
    assert scores.shape == (1, 64)
    scores[:, 2] = -np.inf
    assert llm.generate(ids, max_tokens=1, **ALONE).tokens == scores.argmax(axis=1).tolist()


def test_a_cancelled_request_leaves_the_text_for_the_next(llm: LLM) -> None:
    ids = prompt(25, 13)
    alone = llm.generate(ids, max_tokens=8, **ALONE).tokens
    handle = llm.submit(ids, max_tokens=30, **OPTIONS)
    next(iter(handle))
    handle.cancel()
    handle.result(300)
    assert llm.generate(ids, max_tokens=8, **OPTIONS).tokens == alone


@pytest.mark.parametrize("failing", [1, 3])
def test_a_step_that_fails_is_tried_again(llm: LLM, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [prompt(n, 14) for n in (13, 9, 18)]
    alone = [llm.generate(ids, max_tokens=8, **ALONE).tokens for ids in prompts]
    shared = fail_once(monkeypatch, failing)
    handles = [llm.submit(ids, max_tokens=8, **OPTIONS) for ids in prompts]
    assert [handle.result(300).tokens for handle in handles] == alone
    assert shared() >= failing


def test_a_full_context_forgets_the_oldest_of_the_answer_and_keeps_the_text(llm: LLM) -> None:
    ids = prompt(30, 15)
    answer = llm.generate(ids, max_tokens=60, num_keep=0, **OPTIONS)
    assert len(answer.tokens) == 60
    ended = llm.generate(ids, max_tokens=60, **OPTIONS)
    assert ended.finish_reason == "length"
    assert ended.tokens == answer.tokens[: len(ended.tokens)]
    assert len(ended.tokens) == llm.context - 30


@pytest.mark.fault(
    "a prompt is longer than the step of an encoder", "RequestError naming the lengths, and what to load with"
)
def test_a_text_longer_than_a_step_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"50 tokens, and the encoder takes 47 at once: .* larger batch"):
        llm.generate(prompt(50, 16))
    assert llm.generate(prompt(47, 16), max_tokens=2, **OPTIONS).tokens


def test_a_part_of_the_text_cannot_be_removed(llm: LLM) -> None:
    llm.generate(prompt(20, 17), max_tokens=4, **OPTIONS)
    assert llm.cache is not None
    sequence = next(slot.sequence for slot in llm.runner.slots.all if len(slot.tokens) == 24)
    with pytest.raises(CacheShiftError, match="attends to the whole text of 20 tokens"):
        llm.cache.remove(sequence, 4, 9)


def test_forgetting_frees_texts_and_cells(llm: LLM) -> None:
    llm.generate(prompt(20, 18), max_tokens=2, **OPTIONS)
    llm.forget()
    assert llm.cache is not None
    assert llm.cache.used == 0


def test_what_was_reserved_is_enough_for_every_step(llm: LLM) -> None:
    handles = [llm.submit(prompt(47, seed), max_tokens=3, **OPTIONS) for seed in range(20, 26)]
    for handle in handles:
        handle.result()
    assert llm.memory().total() <= llm.step_cache._kept.reserved
