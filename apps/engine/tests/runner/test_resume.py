"""Answers that are interrupted and go on: each is the answer that nobody interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import unpacked
from runner_scripts import OPTIONS, prompt
from small_llama import EOS

import backbay
from backbay_engine import LLM, Completion, ContextOverflowError, RequestError, Timings, TokenStep, load

SIZES: dict[str, Any] = {"context": 64, "parallel": 2, "batch": 16, "num_threads": 1, "kv_dtype": "f32"}
PROPERTY = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
A, B, C = 97, 98, 99
HALVES = dict.fromkeys(
    (0xE2, 0x82, 0xAC, 0xC3), 6.0
)  # bytes of characters, not always in an order that makes some


def steps_of(llm: LLM, asked: Any, **options: Any) -> tuple[list[TokenStep], Completion]:
    handle = llm.submit(asked, **options)
    return list(handle.steps()), handle.result()


def check_every_cut(llm: LLM, asked: Any, options: dict[str, Any], elsewhere: LLM | None = None) -> None:
    """Interrupt an answer after each of its tokens, and let it go on."""
    steps, whole = steps_of(llm, asked, **options)
    for cut in range(len(whole.tokens) + 1):
        given_before = "".join(step.text for step in steps[:cut])
        resumed = whole.tokens[:cut]
        found_steps, found = steps_of(elsewhere or llm, asked, resume=resumed, **options)
        if whole.logprobs is not None and found.logprobs is not None:
            assert [each.token for each in found.logprobs] == whole.tokens[cut:]
        assert replace(found, timings=None, logprobs=None) == replace(whole, timings=None, logprobs=None), cut
        assert given_before + "".join(step.text for step in found_steps) == whole.text, cut
        assert resumed + [token for step in found_steps for token in step.tokens] == whole.tokens
        assert found_steps[-1].finish_reason == whole.finish_reason
        assert all(step.finish_reason is None for step in found_steps[:-1])
        counted = found.timings
        assert (counted.tokens, counted.resumed_tokens) == (len(whole.tokens), cut)
        assert counted.prompt_tokens == whole.timings.prompt_tokens >= counted.reused_tokens


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "logit_bias": {EOS: float("-inf")}},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 1.5, "seed": 8, "top_k": 0, "logit_bias": HALVES},
        {"temperature": 0, "logit_bias": {0xE2: 100.0}},  # never a whole character
        {"seed": 5, "repetition_penalty": 1.4, "frequency_penalty": 0.3, "penalty_window": 6},
        {"temperature": 0, "presence_penalty": 2.0, "penalty_window": -1, "logprobs": 2},
        {"seed": 1, "logit_bias": {A: 20.0, B: 19.5, C: 19.0}, "stop": ["abc", "cab", "bb", "aaaa"]},
        {"seed": 2, "logit_bias": {A: 20.0, B: 19.5, C: 19.0}, "stop": ["aaaaaaaaaa", "abcabcabc"]},
        {"seed": 4, "logit_bias": {EOS: 3.0}},
    ],
    ids=["greedy", "seed", "halves", "half", "penalties", "window", "stops", "held back", "end"],
)
@pytest.mark.few(9)
def test_an_answer_goes_on_after_any_of_its_tokens(llm: LLM, options: dict[str, Any]) -> None:
    check_every_cut(llm, "resume", {"max_tokens": 20, **options})


@PROPERTY
@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 12), "seed": st.integers(0, 2**63 - 1)},
        optional={
            "temperature": st.sampled_from([0, 0.5, 2.0]),
            "top_k": st.sampled_from([0, 3]),
            "top_p": st.sampled_from([0.5, 1.0]),
            "repetition_penalty": st.floats(0.5, 2.0),
            "frequency_penalty": st.floats(-1, 1),
            "penalty_window": st.integers(-1, 8),
            "logit_bias": st.dictionaries(st.sampled_from([A, B, C, 0xE2, 0x82, 0xAC, EOS]), st.floats(0, 9)),
            "stop": st.lists(st.text("abc€", min_size=1, max_size=4), max_size=3),
            "reuse": st.booleans(),
        },
    ),
)
def test_an_answer_goes_on_whatever_its_options_are(llm: LLM, text: str, options: dict[str, Any]) -> None:
    check_every_cut(llm, text, options)


def test_an_answer_goes_on_elsewhere(path: Path) -> None:
    options = {"max_tokens": 12, "seed": 9, "temperature": 1.2, "stop": "ab"}
    with load(path, "cpu_ref", **SIZES) as one, load(path, "cpu_ref", **SIZES, worker=True) as other:
        check_every_cut(one, "elsewhere", options, other)
        check_every_cut(other, "elsewhere", options, one)


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
@pytest.mark.parametrize("kind", ["t5-flan", "mamba2", "qwen35"])
@pytest.mark.few(4)
def test_answers_of_other_kinds_of_models_go_on(kind: str, backend: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**SIZES, "context": 96, "batch": 48}
    with load(unpacked(kind, tmp_path), backend, **sizes) as llm:
        for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 6}):
            check_every_cut(llm, prompt(9, 1), {**OPTIONS, "max_tokens": 8, **options})


def test_an_answer_ends_where_the_context_is_full(llm: LLM) -> None:
    options = {"temperature": 0, "logit_bias": {EOS: float("-inf")}}
    full = [65] * 55
    check_every_cut(llm, full, options)
    whole = llm.generate(full, **options)
    assert len(full) + len(whole.tokens) == llm.context + 1
    with pytest.raises(ContextOverflowError) as caught:
        llm.submit(full, resume=[*whole.tokens, 65], **options)
    assert (caught.value.prompt_tokens, caught.value.context) == (66, 64)


def test_what_shifts_forgot_stays_forgotten(llm: LLM) -> None:
    options = {"temperature": 0, "num_keep": 4, "max_tokens": 150, "logit_bias": {EOS: float("-inf")}}
    whole = llm.generate("shift", **options)
    for cut in (1, 58, 59, 60, 61, 92, 120, 149, 150):
        found = llm.generate("shift", resume=whole.tokens[:cut], **options)
        assert found.tokens[:cut] == whole.tokens[:cut]
        assert (len(found.tokens), found.finish_reason) == (150, "length")


@pytest.mark.parametrize(
    ("resume", "told"),
    [
        ("ab", "resume must be token ids, got 'ab'"),
        (5, "resume must be token ids, got 5"),
        ([1.5], "resume must be token ids"),
        ([261], r"\[0, 261\), got 261"),
        ([A, EOS, A], "resume has 3 tokens, but the answer is over after 2 of them"),
        ([A] * 4, "resume has 4 tokens, but the answer is over after 3 of them"),
        ([A, B, A], "resume has 3 tokens, but the answer is over after 2 of them"),
    ],
)
def test_what_cannot_be_resumed_is_refused(llm: LLM, resume: Any, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        llm.submit("x", resume=resume, max_tokens=3, stop="ab")


def test_the_times_of_a_resumed_answer_are_those_of_its_own_tokens() -> None:
    assert Timings(tokens=11, resumed_tokens=5, generation=0.5).rate == 10
    assert Timings(tokens=5, resumed_tokens=5).rate == 0
